"""We ourselves stand still for a while: whoever has not answered meanwhile is not taken for late because of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .attaching import Target, words_of
from .terminals import BREAKRANKS, Place, wait_for

DEADLINE = 3.0
TAKES = 6.0  # seconds until the answer is there; we stand still for all but a second of it


def stalling(process: subprocess.Popen[str], asked: Callable[[], bool]) -> str:
    """What a command says that is stopped as soon as it has asked, and goes on shortly before the answer is there."""
    try:
        wait_for("the question", lambda: asked() or None, 60)
        process.send_signal(signal.SIGSTOP)
        time.sleep(TAKES - 1)
        process.send_signal(signal.SIGCONT)
        said = process.communicate(timeout=60)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    return said


def test_a_host_is_not_late(tmp_path: Path) -> None:
    port = str(20_000 + os.getpid() % 20_000)
    named = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    code = "import time\ndef load_batch(): print('x', flush=True); time.sleep(1000)\nload_batch()"
    rank = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **named}, stdout=subprocess.PIPE)
    asked, slowly = tmp_path / "asked", tmp_path / "slowly"
    slowly.write_text(f'#!/bin/sh\ntouch {asked}\nsleep {TAKES}\nshift\nexec "$@"\n')
    slowly.chmod(0o700)
    try:
        assert rank.stdout is not None and rank.stdout.readline()
        words = ["stacks", f"exec:{slowly} {{host}}@here", "--deadline", str(DEADLINE), "--job", f"python-{port}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "breakranks", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert "load_batch" in stalling(process, asked.exists)
    finally:
        rank.kill()
        rank.communicate()


@pytest.mark.parametrize("command", ["attach", "eval"])
def test_a_rank_is_not_late(tmp_path: Path, command: str) -> None:
    with Place(tmp_path) as place:
        target = Target(place, "busy")
        asked = tmp_path / "asked"
        slow = f"open({str(asked)!r}, 'w').close() or __import__('time').sleep({TAKES}) or MODE"
        if command == "attach":
            words = words_of(target, [f"p {slow}"], ["--timeout", str(DEADLINE), "--no-stop"])
        else:
            words = [BREAKRANKS, "eval", target.name, "--timeout", str(DEADLINE), "--allow-effects", slow]
        process = place.start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert "'busy'" in stalling(process, asked.exists)
        target.left()
        target.ends()
