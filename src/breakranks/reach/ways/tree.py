"""One process for many hosts through ClusterShell's tree: ssh to gateways, which ssh on.

    python -m breakranks.reach.ways.tree FANOUT SECONDS SSH_OPTIONS COMMAND HOST…

Lines on stdin go to every host; what hosts print comes as whole lines with ``host: `` in front, as from pdsh. The
topology is the site's own (``topology.conf``). Gateways need ClusterShell, and are trusted: it unpickles what they send.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

MARK = "tree@"  # starts a line on stderr that is of this program


def topology_file() -> str | None:
    """The site's topology, where it has one; found as ClusterShell finds it, without importing that."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    folders = [os.environ.get("CLUSTERSHELL_CFGDIR") or "/etc/clustershell", os.path.join(home, "clustershell")]
    folders.append(os.path.expanduser("~/.local/etc/clustershell"))
    found = [path for folder in folders if os.path.isfile(path := os.path.join(folder, "topology.conf"))]
    return found[-1] if found else None


def main(arguments: list[str]) -> int:
    """Run a command on hosts until all have ended; the status is the largest of theirs."""
    fanout, seconds, ssh_options, command, *hosts = arguments
    task_module: Any = importlib.import_module("ClusterShell.Task")
    task = task_module.task_self({"engine": "poll"})  # epoll refuses a stdin that is a file
    for name, value in _INFO.items():
        task.set_info(name, value)
    task.set_info("fanout", int(fanout))
    task.set_info("connect_timeout", float(seconds))
    task.set_info("ssh_options", ssh_options)
    task.set_default("stdout_msgtree", False)
    task.set_default("stderr_msgtree", False)
    path = topology_file()
    if path is None:
        return _say("there is no topology.conf") or 2
    task.load_topology(path)
    _say(f"{len(hosts)} hosts by {path}")
    handler = _handler()
    worker = task.shell(command, nodes=",".join(hosts), handler=handler, tree=True, stderr=True, stdin=True)
    _forward(task, worker)
    task.resume()
    return int(task.max_retcode() or 0)


_INFO = {
    "command_timeout": 0,
    "grooming_delay": 0.02,  # how long a gateway gathers lines; its default is a quarter of a second
    "print_debug": None,
}


def _say(text: str) -> None:
    sys.stderr.write(f"{MARK}{os.uname().nodename}: {text}\n")
    sys.stderr.flush()


def _handler() -> Any:
    events: Any = importlib.import_module("ClusterShell.Event")

    class Output(events.EventHandler):  # type: ignore[misc]
        def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
            fd = 1 if sname == "stdout" else 2
            label = f"{node}: ".encode()
            _write(fd, b"".join(label + line + b"\n" for line in msg.split(b"\n")))

        def ev_hup(self, worker: Any, node: str, rc: int) -> None:
            if rc:
                _say(f"{node}: ssh exited with exit code {rc}")

    return Output()


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _forward(task: Any, worker: Any) -> None:
    """Give the worker each line of stdin, and its end."""
    workers: Any = importlib.import_module("ClusterShell.Worker.Worker")
    events: Any = importlib.import_module("ClusterShell.Event")

    class Input(events.EventHandler):  # type: ignore[misc]
        def ev_read(self, source: Any, node: str, sname: str, msg: bytes) -> None:
            worker.write(msg + b"\n")

        def ev_close(self, source: Any, timedout: bool) -> None:
            worker.set_write_eof()

    os.set_blocking(0, False)
    reader = workers.StreamWorker(handler=Input())
    reader.set_reader("stdin", sys.stdin.buffer, retain=False)
    task.schedule(reader)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
