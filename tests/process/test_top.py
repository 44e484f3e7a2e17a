"""`breakranks top` in a real terminal."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

BREAKRANKS = str(Path(sys.executable).parent / "breakranks")
DEADLINE = 60.0


class Terminal:
    """A tmux of its own, with one window that runs one command."""

    def __init__(self, folder: Path, command: str) -> None:
        self._socket = str(folder / "tmux")
        self._tmux(
            "-f", os.devnull, "new-session", "-d", "-x", "110", "-y", "30", f"{command}; echo left $?; sleep 600"
        )

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def type(self, keys: str) -> None:
        self._tmux("send-keys", keys)

    def wait_for(self, text: str) -> str:
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            screen = self._tmux("capture-pane", "-p")
            if text in screen:
                return screen
            time.sleep(0.1)
        raise AssertionError(f"{text!r} never came; the screen:\n{screen}")

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def rank() -> int:
    code = "import time\ndef wait_for_storage():\n  time.sleep(600)\nwait_for_storage()"
    process = subprocess.Popen([sys.executable, "-c", code])
    yield process.pid  # type: ignore[misc]
    process.kill()
    process.wait()


def test_it_shows_the_classes_and_q_leaves(rank: int, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, f"{shlex.quote(BREAKRANKS)} top pid:{rank} --interval 1")
    try:
        screen = terminal.wait_for("for_storage")
        assert "sleeping" in screen
        terminal.type("q")
        # The terminal is as it was: what the shell prints next can be read.
        terminal.wait_for("left 0")
    finally:
        terminal.close()


def test_ctrl_c_leaves_too_and_the_rank_runs_on(rank: int, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, f"{shlex.quote(BREAKRANKS)} top pid:{rank} --interval 1")
    try:
        terminal.wait_for("for_storage")
        terminal.type("C-c")
        terminal.wait_for("left ")
    finally:
        terminal.close()
    assert Path(f"/proc/{rank}/stat").read_text().split(") ")[1][0] == "S"
