"""Two ranks in a folder of their own, and a bridge between them and clients of the Debug Adapter Protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.processes import Processes
from support.targets import SOURCE, THIS, Interpreter
from support.waiting import free_port, wait_for

from .dap_client import DEADLINE, Client

# Counts until the file "end" is there, and waits then until no thread of others is left if "alone" is there too;
# "fork" makes a child call step(), "sleep" has the rank wait in C for "wake".
PROGRAM = """\
import os, sys, threading, time
import breakranks

def step(number, total):
    loss = number * 2
    total += loss  # here
    return total  # after

def asked(name):
    return os.path.exists(name) and not os.path.exists(name + RANK)

def forked():
    child = os.fork()
    if not child:
        os._exit(step(21, 0))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def hooks():
    tools = [sys.monitoring.get_tool(at) for at in range(6)] if hasattr(sys, "monitoring") else []
    threads = threading.gettrace(), threading.enumerate.__code__
    return threads, sys.gettrace(), sys.settrace, sys.breakpointhook, sys.stdout, sys.stderr, tools

def importable(name):
    try:
        __import__(name)
        return True
    except ImportError:
        return False

def main():
    breakranks.breakpoint(when=False)
    total, count, child, before = 0, 0, None, hooks()
    while not os.path.exists("end"):
        total = step(1, total)
        count += 1
        time.sleep(0.005)
        if asked("fork"):
            child = forked()
            open("fork" + RANK, "w").close()
        if asked("sleep"):
            open("sleep" + RANK, "w").close()
            os.read(os.open("wake", os.O_RDWR), 1)  # in C
    deadline = time.monotonic() + 60
    while os.path.exists("alone") and threading.active_count() > 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    print("right" if total == 2 * count else f"wrong: {total} of {count} steps")
    print("child", child)
    print("debugpy", "pydevd" in sys.modules)
    print("left", [one.name for one in threading.enumerate()], hooks() == before)
    print("others", importable("msgspec"))

RANK = os.environ["RANK"]
main()
"""
# A group whose operations may take two seconds; rank 1 waits for rank 0 in each. It begins when it is told to: two
# seconds are soon over on a machine that does other things too.
TORCH = """\
import datetime, os, time
import torch, torch.distributed as dist
import breakranks

def step():
    ended = torch.tensor([float(os.path.exists("end"))])
    dist.broadcast(ended, 0, group=group)  # here
    return ended.item()

dist.init_process_group("gloo")
group = dist.new_group(timeout=datetime.timedelta(seconds=2))
breakranks.breakpoint(when=False)
while not os.path.exists("begin"):
    time.sleep(0.01)
while not step():
    time.sleep(0.01)
while breakranks.rank.api._agent.timeouts.extended:
    time.sleep(0.01)
print("timeout", group._get_backend(torch.device("cpu")).options._timeout)
dist.destroy_process_group()
del group  # ends its thread, which would abort the process if it released a tensor while Python ends
"""
# The same, as somebody who has never heard of us has it.
UNPREPARED = PROGRAM.replace("import breakranks\n", "\n").replace("    breakranks.breakpoint(when=False)\n", "\n")
UNPREPARED = UNPREPARED.replace("active_count() > 2", "active_count() > 1")
# With a thread besides that Python has no object for, which ends when it is told to.
RAW = PROGRAM.replace(
    "def main():\n",
    """def raw():
    while not os.path.exists("raw-end"):
        time.sleep(0.01)
    open("raw" + RANK, "w").close()

def main():
    __import__("_thread").start_new_thread(raw, ())
""",
)
LINES = PROGRAM.splitlines()
HERE, AFTER = (next(at for at, line in enumerate(LINES, 1) if line.endswith(f"# {mark}")) for mark in ("here", "after"))

BRIDGE = """\
import argparse, sys
from breakranks.cli import dap_options, dap_server
from breakranks.console.debug_session import DebugSession
from breakranks.errors import BreakranksError
parser = argparse.ArgumentParser()
dap_options.add_options(parser)
parser.add_argument("--no-debugpy", action="store_true")
args = parser.parse_args()
if args.no_debugpy:
    sys.modules["debugpy"] = None
session = DebugSession()
session.scan()
assert session.wait(lambda: len(session.ranks) == 2, 90)
try:
    options = dap_options.options_of(args)
    assert options is not None
    sys.exit(dap_server.serve(session, session.ranks, options))
except BreakranksError as error:
    sys.exit(f"{error.message}|{error.help}")
finally:
    session.close(armed=True)
"""


class Place(Processes):
    """Two ranks in a folder of their own, and a bridge to them."""

    folder: Path

    def __init__(self, folder: Path, interpreter: Interpreter = THIS) -> None:
        super().__init__(folder)
        self.interpreter = interpreter
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)
        os.mkfifo(folder / "wake")
        self.run = folder / "run"
        self.run.mkdir(mode=0o700)
        self.ranks: list[subprocess.Popen[str]] = []
        self.bridge: subprocess.Popen[str] | None = None
        self.clients: list[Client] = []
        self.config: dict[str, Any] = {}

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        mine = {"PYTHONPATH": str(SOURCE), "BREAKRANKS_RUN": str(self.run), "BREAKRANKS_CONSOLE": "0"}
        found = super().environ({**mine, **(more or {})})
        return {name: value for name, value in found.items() if not name.startswith("PYDEVD")}

    def begin(self, *options: str, bare: bool = False) -> None:
        """Start two ranks and a bridge. ``bare``: with a Python that has the standard library only."""
        port = str(free_port())
        for rank in "01":
            named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
            self.ranks.append(
                self.start(
                    [self.interpreter.path, *(["-S"] if bare else []), str(self.program)],
                    {"MASTER_PORT": port, "PYTHONWARNINGS": "ignore", **named},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        if "breakranks" in self.program.read_text():
            wait_for("two agents", lambda: len(list(self.run.glob("*/rank-*.json"))) == 2)
        self.serve(*options)

    def serve(self, *options: str) -> None:
        """Start a bridge; ``config`` is then what it says is to be in launch.json."""
        printed = () if {"--dap-unix", "--launch-json"} & set(options) else ("--launch-json", "-")
        out, log = self._files
        for path in self._files:
            if path.exists():  # of the bridge before this one
                path.rename(path.with_name(f"bridge-{self.bridge.pid if self.bridge else 0}{path.suffix}"))
        with open(out, "w") as stdout, open(log, "w") as stderr:
            self.bridge = self.start(
                [sys.executable, *self._command, *({"--dap"} - set(options)), *printed, *options],
                stdout=stdout,
                stderr=stderr,
            )
        bridge = self.bridge
        wait_for(
            "the bridge", lambda: bridge.poll() is not None or "Ctrl-C to stop" in out.read_text() + log.read_text()
        )
        if printed:
            assert bridge.poll() is None, self.said
            self.config = json.loads(out.read_text())

    @property
    def _command(self) -> list[str]:
        if "breakranks" in self.program.read_text():
            return ["-c", BRIDGE]
        return ["-m", "breakranks", "attach", "pid:" + ",".join(str(rank.pid) for rank in self.ranks)]

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.folder / "bridge.out", self.folder / "bridge.log"

    @property
    def said(self) -> str:
        """What the bridge has told whoever started it."""
        return "".join(path.read_text() for path in self._files)

    def path(self, rank: int) -> str:
        return str(next(self.run.glob(f"*/dap-{rank}.sock")))

    @property
    def address(self) -> tuple[str, int]:
        connect = self.config["configurations"][0]["connect"]
        return connect["host"], connect["port"]

    def key(self, rank: int) -> dict[str, Any]:
        """What an editor passes on from launch.json."""
        return {key: value for key, value in self.config["configurations"][rank].items() if key.startswith("breakr")}

    def client(self, address: str | tuple[str, int]) -> Client:
        self.clients.append(Client(address))
        return self.clients[-1]

    def stopped(self, rank: int) -> tuple[Client, int]:
        """A client that has stopped a rank in step(), and the thread."""
        client = self.client(self.path(rank))
        client.attach()
        return client, client.run_to(str(self.program), HERE)

    def entry(self, rank: int) -> dict[str, Any]:
        """What a rank has on the board; while it is written anew it may not be found for a moment."""
        [path] = wait_for(f"the entry of rank {rank}", lambda: list(self.run.glob(f"*/rank-{rank}.json")))
        return dict(json.loads(path.read_text()))

    def ask_for(self, name: str, *ranks: int) -> None:
        """Have the ranks do something that the program knows, and wait until these have."""
        (self.folder / name).touch()
        for rank in ranks:
            wait_for(name, (self.folder / f"{name}{rank}").exists)

    def results(self) -> list[dict[str, str]]:
        """What the ranks say in the end; that is all that they print, and they must have counted right."""
        (self.folder / "alone").touch()
        (self.folder / "end").touch()
        found = []
        for rank in self.ranks:
            text, _ = rank.communicate(timeout=DEADLINE)
            lines = text.splitlines()
            assert (lines[:1], len(lines), rank.returncode) == (["right"], 5, 0), text
            found.append(dict(line.split(" ", 1) for line in lines[1:]))
        assert "Traceback" not in self.said, self.said
        return found

    def told(self) -> str:
        heard = [
            f"-- client {number} heard last\n" + "\n".join(str(one)[:300] for one in client.heard[-8:])
            for number, client in enumerate(self.clients)
        ]
        return "\n".join([super().told(), *heard])

    def end(self) -> None:
        for client in self.clients:
            client.close()
        super().end()
