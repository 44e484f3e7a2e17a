"""One process for many hosts through ClusterShell's tree: ssh to gateways, which ssh on.

    python tree.py FANOUT SECONDS TOPOLOGY SSH_OPTIONS COMMAND HOST…

Lines on stdin go to every host; what hosts print comes as whole lines with ``host: `` in front, as from pdsh. The
topology is the site's own (``topology.conf``). Gateways need ClusterShell, and are trusted: it unpickles what they
send. Run as a file, so that nothing of the folder we are in is imported; for that it imports nothing of ours.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

MARK = "tree@"  # starts a line on stderr that is of this program
PIECE = 12_000
_GATHER = 0.02  # seconds for which a gateway gathers lines; its default is a quarter of a second


def topology() -> str:
    """The site's topology, if it has one with this machine at its root and the tree is not turned off; else "".

    The file is looked for where ClusterShell does, which is imported only if there is one.
    """
    if os.environ.get("BREAKRANKS_TREE", "").lower() in ("0", "no", "off", "false"):
        return ""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    folders = ["/etc/clustershell", os.path.expanduser("~/.local/etc/clustershell")]
    folders += [os.path.join(sys.prefix, "etc/clustershell"), os.path.join(home, "clustershell")]
    folders += [os.environ["CLUSTERSHELL_CFGDIR"]] if "CLUSTERSHELL_CFGDIR" in os.environ else []
    found = [path for folder in folders if os.path.isfile(path := os.path.join(folder, "topology.conf"))]
    if not found:
        return ""
    try:
        parser: Any = importlib.import_module("ClusterShell.Topology").TopologyParser
        parser(found[-1]).tree(os.uname().nodename.partition(".")[0])
    except Exception:  # no ClusterShell; or a tree of others, for which plain ssh is right
        return ""
    return found[-1]


def main(arguments: list[str]) -> int:
    """Run a command on hosts until all have ended; the status is the largest of theirs."""
    fanout, seconds, path, ssh_options, command, *hosts = arguments
    importlib.import_module("ClusterShell.Defaults").DEFAULTS.engine = "poll"  # epoll refuses a stdin that is a file
    task: Any = importlib.import_module("ClusterShell.Task").task_self()
    task.set_info("fanout", int(fanout))
    task.set_info("connect_timeout", float(seconds))
    task.set_info("command_timeout", 0)
    task.set_info("ssh_options", ssh_options)
    task.set_info("grooming_delay", _GATHER)
    task.set_default("stdout_msgtree", False)
    task.set_default("stderr_msgtree", False)
    say(f"{len(hosts)} hosts by {path}")
    try:
        task.load_topology(path)
        worker = task.shell(command, nodes=",".join(hosts), handler=_output(), tree=True, stderr=True, stdin=True)
        _forward(task, worker)
        task.resume()
    except Exception as error:  # a gateway that is gone, and there is no other
        say(f"failed: {error}")
        return 255
    return int(task.max_retcode() or 0)


def say(text: str) -> None:
    """A word of this program itself."""
    sys.stderr.write(f"{MARK}{os.uname().nodename}: {text}\n")
    sys.stderr.flush()


def _output() -> Any:
    events: Any = importlib.import_module("ClusterShell.Event")

    class Output(events.EventHandler):  # type: ignore[misc]
        def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
            label = f"{node}: ".encode()
            data = b"".join(label + line + b"\n" for line in msg.split(b"\n"))
            while data:
                data = data[os.write(1 if sname == "stdout" else 2, data) :]

        def ev_hup(self, worker: Any, node: str, rc: int) -> None:
            if rc:
                say(f"{node}: ssh exited with exit code {rc}")

    return Output()


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
    del sys.path[0]  # our own folder: its names are not for others to import
    sys.exit(main(sys.argv[1:]))
