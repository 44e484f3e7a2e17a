"""`breakranks top` in a real terminal."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import Processes
from support.waiting import wait_for

from .attaching import state_of
from .terminals import BREAKRANKS

RANK = "import time\ndef wait_for_storage():\n  time.sleep(600)\nwait_for_storage()"


class Terminal:
    """A tmux of its own, with one window in which `top` looks at one process."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.rank = processes.start([sys.executable, "-c", RANK]).pid
        command = f"{shlex.quote(BREAKRANKS)} top pid:{self.rank} --interval 1; echo left $?; sleep 600"
        self._tmux("-f", os.devnull, "new-session", "-d", "-x", "110", "-y", "30", command)

    def _tmux(self, *arguments: str) -> str:
        done = self._processes.call(["tmux", "-S", "tmux", *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def type(self, keys: str) -> None:
        self._tmux("send-keys", keys)

    def wait_for(self, *texts: str) -> None:
        wait_for(f"{texts} on the screen", lambda: (screen := self.screen()) and all(text in screen for text in texts))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Processes(tmp_path) as processes:
        yield Terminal(processes)


def test_it_shows_the_classes_and_q_leaves(terminal: Terminal) -> None:
    terminal.wait_for("for_storage", "sleeping")
    terminal.type("q")
    # The terminal is as it was: what the shell prints next can be read.
    terminal.wait_for("left 0")


def test_ctrl_c_leaves_too_and_the_rank_runs_on(terminal: Terminal) -> None:
    terminal.wait_for("for_storage")
    terminal.type("C-c")
    terminal.wait_for("left ")
    wait_for("it to sleep", lambda: state_of(terminal.rank) == "S")
