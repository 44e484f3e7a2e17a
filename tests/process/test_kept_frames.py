"""A rank that was inspected keeps no frame: the values of a function's variables are freed when it returns."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.targets import Interpreter, on_every_python
from support.waiting import DEADLINE_SECONDS, wait_for

from .attaching import files_of, threads_of
from .terminals import BREAKRANKS, HERE, Place, line_of

PROGRAM = HERE / "kept_frames_program.py"
LINE = f"{PROGRAM}:{line_of('waits', PROGRAM)}"
# Blocks until the other end is opened, so that the step has not ended when the console is killed.
BLOCK = "lambda _: (open('blocking', 'w'), open('fifo'))"
COMMANDS = (
    ["stacks"],
    ["eval", "turn"],
    ["attach", "-c", "w", "-c", "go"],
    ["attach", "-c", f"tbreak {LINE}", "-c", "c", "-c", "p turn", "-c", "u", "-c", "go"],
    [
        "attach",
        *(word for line in ("watch early", "catch ValueError", "n", "n", "s", "locals", "go") for word in ("-c", line)),
    ],
    ["attach", "-c", f"tbreak {LINE}", "-c", "c", "-c", f"p blocks.append({BLOCK})", "-c", "n"],
    ["attach", "--no-stop", "-c", "w", "-c", "p early", "-c", "up"],
    ["probe", LINE, "--print", "early", "--times", "2"],
)


@pytest.fixture
def place(tmp_path: Path, interpreter: Interpreter) -> Iterator[Place]:
    with Place(tmp_path, interpreter) as place:
        yield place
        wait_for("the folder to be empty", lambda: files_of(place) == [] or None)


@on_every_python
def test_the_variables_of_a_function_are_freed_when_it_returns(place: Place) -> None:
    # GIVEN a program whose Python does not collect cycles
    program = place.start([place.interpreter.path, str(PROGRAM), str(place.folder), str(len(COMMANDS))])
    os.mkfifo(fifo := place.folder / "fifo")
    freed = {}
    for turn, (command, *words) in enumerate(COMMANDS):
        wait_for(f"turn {turn}", (place.folder / f"ready.{turn}").exists)

        # WHEN it is inspected in one of its functions
        done = place.start(
            [BREAKRANKS, command, f"pid:{program.pid}", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if words[-1:] == ["n"]:
            wait_for("the step to begin", (place.folder / "blocking").exists)
            done.kill()
        shown = done.communicate(timeout=DEADLINE_SECONDS)[0]
        assert done.returncode == (-signal.SIGKILL if words[-1:] == ["n"] else 0), shown
        wait_for("our threads to have gone", lambda: not threads_of(program.pid, "breakranks"))
        other_end = os.open(fifo, os.O_RDWR)
        (place.folder / f"end.{turn}").touch()
        wait_for(f"the end of turn {turn}", (place.folder / f"freed.{turn}").exists)
        os.close(other_end)
        freed[" ".join((command, *words))] = (place.folder / f"freed.{turn}").read_text()

    # THEN the values of its variables are freed when it returns
    assert freed == dict.fromkeys(freed, "2")
