"""We ourselves stand still for a while: whoever has not answered meanwhile is not taken for late because of it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.waiting import DEADLINE_SECONDS, free_port, wait_for

from .attaching import Target, words_of
from .console_program import launcher_variables
from .programs import python
from .terminals import BREAKRANKS, Place

DEADLINE = 10.0
TAKES = 12.0  # seconds until the answer is there; we stand still for all but a second of it


def stalling(process: subprocess.Popen[str], asked: Callable[[], bool]) -> str:
    """What a command says that is stopped as soon as it has asked, and goes on shortly before the answer is there."""
    wait_for("the question", asked)
    process.send_signal(signal.SIGSTOP)
    time.sleep(TAKES - 1)
    process.send_signal(signal.SIGCONT)
    said = process.communicate(timeout=DEADLINE_SECONDS)[0]
    assert process.returncode == 0, said
    return str(said)


def test_a_host_is_not_late(tmp_path: Path) -> None:
    asked, slowly = tmp_path / "asked", tmp_path / "slowly"
    slowly.write_text(f'#!/bin/sh\ntouch {asked}\nsleep {TAKES}\nshift\nexec "$@"\n')
    slowly.chmod(0o700)
    port = str(free_port())
    code = "import time\ndef load_batch(): print('x', flush=True); time.sleep(1000)\nload_batch()"
    with python(code, env={**launcher_variables(0, 1), "MASTER_PORT": port}), Place(tmp_path) as place:
        words = ["stacks", f"exec:{slowly} {{host}}@here", "--deadline", str(DEADLINE), "--job", f"python-{port}"]
        process = place.start([BREAKRANKS, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert "load_batch" in stalling(process, asked.exists)


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
