"""The cost of a breakpoint that is set in a running process and not hit.

    .venv/bin/python bench/unhit_breakpoints.py
    .venv/bin/python bench/unhit_breakpoints.py --debugpy 3.11=/tmp/v311/bin/python,3.13=/tmp/v313/bin/python

Two loops: one calls a small Python function, the other has only arithmetic. Each is timed untouched, and with
breakpoints in three places: in a function of the same file that is never called, in a branch of the same functions that
is never taken, and at a line that is executed in every turn, with a false condition. The peers do the same: ``pdb``
with ``b`` and ``c``, and debugpy, if ``--debugpy`` names a Python of that version that has it. Every cell is a process
of its own, and they take turns. The unit is ns of CPU per turn, the best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = {"3.11": ".venv", "3.12": ".venv-3.12", "3.13": ".venv-3.13"}
DEADLINE = 120.0

PROGRAM = """
import json, sys, time

def never(x):
    return x  # elsewhere

def small(x):
    y = x + 1
    if x < 0:
        y = -1  # small, branch
    return y  # small, each

def calls(n):
    total = 0
    for _ in range(n):
        total = small(total)
    return total

def arithmetic(n):
    total = i = 0
    while i < n:
        total += i * 3 % 7
        if total < 0:
            total = 0  # arithmetic, branch
        i += 1  # arithmetic, each
    return total

def measured(rounds, n):
    found = {}
    for loop in (calls, arithmetic):
        loop(n // 10)
        times = []
        for _ in range(rounds):
            began = time.thread_time_ns()
            loop(n)
            times.append((time.thread_time_ns() - began) / n)
        found[loop.__name__] = min(times)
    return found

def nothing(places):
    pass

def ours(places):
    from breakranks.rank import api
    from breakranks.rank.running_pdb import RunningPdb
    agent = api._start()
    for place in places:
        said, failed = RunningPdb(agent).do("b " + place)
        assert not failed, said

def debugged(places):
    import io, os, pdb
    lines = "".join(f"b {place}\\n" for place in places)
    pdb.Pdb(stdin=io.StringIO(lines + "c\\n"), stdout=open(os.devnull, "w"), nosigint=True, readrc=False).set_trace()

def pydevd(places):
    import debugpy
    debugpy.listen(("127.0.0.1", int(sys.argv[5])))
    print("listening", flush=True)
    debugpy.wait_for_client()

if __name__ == "__main__":
    way = {"nothing": nothing, "ours": ours, "pdb": debugged, "debugpy": pydevd}[sys.argv[1]]
    way(json.loads(sys.argv[2]))
    found = measured(int(sys.argv[3]), int(sys.argv[4]))
    print(json.dumps(found), flush=True)
"""

SCENES = {
    "in a function that is not called": ("elsewhere",),
    "in a branch that is not taken": ("small, branch", "arithmetic, branch"),
    "at each turn, its condition false": ("small, each", "arithmetic, each"),
}
FALSE = {"small, each": "x < 0", "arithmetic, each": "i < 0"}


def line_of(mark: str) -> int:
    return next(at for at, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith(f"# {mark}"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Editor:
    """The part of the Debug Adapter Protocol that sets breakpoints and continues."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE)
        self._file = self._socket.makefile("rb")
        self._number = 0

    def send(self, command: str, **arguments: Any) -> None:
        self._number += 1
        text = json.dumps({"seq": self._number, "type": "request", "command": command, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))

    def until(self, **wanted: str) -> None:
        while True:
            length = 0
            while (line := self._file.readline().strip()) != b"":
                length = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else length
            message = json.loads(self._file.read(length))
            if all(message.get(key) == value for key, value in wanted.items()):
                return

    def set_up(self, program: Path, marks: tuple[str, ...]) -> None:
        self.send("initialize", adapterID="bench", pathFormat="path")
        self.until(command="initialize")
        self.send("attach", justMyCode=False)
        self.until(event="initialized")
        lines = [{"line": line_of(mark), **({"condition": FALSE[mark]} if mark in FALSE else {})} for mark in marks]
        self.send("setBreakpoints", source={"path": str(program)}, breakpoints=lines)
        self.until(command="setBreakpoints")
        self.send("configurationDone")
        self.until(command="configurationDone")


def cell(python: str, program: Path, way: str, marks: tuple[str, ...], rounds: int, turns: int) -> dict[str, float]:
    places = [f"{program}:{line_of(mark)}" + (f", {FALSE[mark]}" if mark in FALSE else "") for mark in marks]
    port = free_port()
    words = [python, str(program), way, json.dumps(places), str(rounds), str(turns), str(port)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(port)}
    environ |= {"MASTER_ADDR": "localhost", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ)
    assert process.stdout is not None
    try:
        if way == "debugpy":
            assert process.stdout.readline() == "listening\n"
            editor = Editor(port)
            editor.set_up(program, marks)
        found: dict[str, float] = json.loads(process.stdout.readline())  # debugpy waits for its editor after this
        return found
    finally:
        process.kill()
        process.wait()


def row(name: str, cells: list[str]) -> None:
    print(f"  {name:38}" + "".join(f"{text:>16}" for text in cells), flush=True)


def compare(version: str, ways: dict[str, str], program: Path, rounds: int, repeats: int) -> None:
    loops = ("calls", "arithmetic")
    best: dict[tuple[str, str], dict[str, float]] = {}
    for _ in range(repeats):
        for scene, marks in (("untouched", ()), *SCENES.items()):
            for way, python in ways.items() if marks else (("nothing", next(iter(ways.values()))),):
                turns = 20_000 if "each" in scene or way != "ours" else 200_000
                found = cell(python, program, way, marks, rounds, turns if marks else 200_000)
                known = best.setdefault((scene, way), found)
                best[scene, way] = {loop: min(found[loop], known[loop]) for loop in loops}
    bare = best["untouched", "nothing"]
    for loop in loops:
        print(f"\n{version}, {loop}, ns a turn (times of untouched)")
        row("untouched", [f"{bare[loop]:.0f}"])
        row("", list(ways))
        for scene in SCENES:
            figures = [best[scene, way][loop] for way in ways]
            row(scene, [f"{one:,.0f} ({one / bare[loop]:.3g})" for one in figures])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--debugpy", default="", help="VERSION=PYTHON, with commas between")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--repeats", type=int, default=3)
    chosen = options.parse_args()
    peers = dict(one.split("=", 1) for one in chosen.debugpy.split(",") if one)
    for name in ("RANK", "WORLD_SIZE", "BREAKRANKS_RANKS", "BREAKRANKS_WAIT", "BREAKRANKS_CONSOLE"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as folder:
        program = Path(folder) / "looping.py"
        program.write_text(PROGRAM)
        os.makedirs(f"{folder}/run", mode=0o700)
        os.environ["BREAKRANKS_RUN"] = f"{folder}/run"
        for version, place in PYTHONS.items():
            python = ROOT / place / "bin" / "python"
            if not python.exists():
                continue
            before = os.getloadavg()[0]
            ways = {"ours": str(python), "pdb": str(python)}
            if version in peers:
                ways["debugpy"] = peers[version]
            compare(version, ways, program, chosen.rounds, chosen.repeats)
            print(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    sys.exit(main())
