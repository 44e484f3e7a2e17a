"""`breakranks top` in a real terminal."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import Processes
from support.waiting import free_port, wait_for

from .attaching import state_of
from .terminals import BREAKRANKS

HANG = """
import os, socket, subprocess
def wait_for_peer(listener):
    connection, _ = listener.accept()
    connection.recv(1)
def convert():
    subprocess.run(["sleep", "600"])
address = "127.0.0.1", int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(address) as listener:
        wait_for_peer(listener)
else:
    connection = None
    while connection is None:
        try:
            connection = socket.create_connection(address)
        except OSError:
            pass
    convert()
"""
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


def test_it_comes_to_a_verdict(tmp_path: Path) -> None:
    """A wait counts only when it has lasted for some seconds, and each sample wakes the threads that wait."""
    with Processes(tmp_path) as processes:
        port = str(free_port())
        job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        program = tmp_path / "rank.py"
        program.write_text(HANG)
        ranks = [
            processes.start([sys.executable, str(program)], env={"RANK": str(rank), "LOCAL_RANK": str(rank), **job})
            for rank in range(2)
        ]
        target = f"pid:{','.join(str(rank.pid) for rank in ranks)}"
        shown = tmp_path / "top.txt"
        with shown.open("w") as stream:
            processes.start([BREAKRANKS, "top", target, "--interval", "1"], stdout=stream)
        wait_for("a verdict", lambda: "wait_for_peer, rank.py:5 (certain)" in shown.read_text())
