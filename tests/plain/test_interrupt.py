"""What follows an interrupt: the rank can be stepped, runs on as before, and ends with its own status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from breakranks.debug.session import Session
from breakranks.rankset import RankSet

PROGRAM = Path(__file__).parent / "interrupt_program.py"
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "2123"}
ONLY = RankSet([0])


def test_a_rank_whose_evaluation_was_interrupted_steps_and_ends_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("BREAKRANKS_RUN", str(tmp_path))
    job = subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, **RANK},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    session = Session()

    def ask(line: str, *, interrupt: bool = False) -> str:
        pending = session.start(line, ONLY)
        if interrupt:
            session.wait(lambda: False, 0.3)
            session.ask({"do": "interrupt"}, ONLY)
        assert session.wait(lambda: not pending.awaited, 20), f"{line} is not answered"
        return pending.answers[0].text

    try:
        assert session.wait(lambda: bool(session.stopped), 20)
        for _ in range(2):
            assert "KeyboardInterrupt" in ask("p slow", interrupt=True)
        assert ask("p 2") == "2\n"
        # Over a call and into one: a look for an exception that was taken back spun there for ever, on 3.11.
        assert "first = count(1)" in ask("n")
        assert "def count" in ask("s")
        assert "return sum" in ask("n")
        assert "Return" in ask("r")
        assert "second = count(2)" in ask("n")
        ask("c")
        session.close(armed=True)
        output, _ = job.communicate(timeout=20)
        # Not -2: a KeyboardInterrupt that leaves an eval of text marks the interpreter, caught or not.
        assert (job.returncode, output) == (0, "RESULT 15\n")
    finally:
        job.kill()
        job.wait()
