"""Promise 1: whatever happens to breakranks, the job that it looks at runs on."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from breakranks.observe import process_state
from support.processes import alive
from support.targets import THIS, Interpreter, on_every_python
from support.waiting import DEADLINE_SECONDS, wait_for

from .console_program import launcher_variables
from .terminals import BREAKRANKS, Place

RANKS = 2
ROUNDS, ROUNDS_ELSEWHERE = 8, 3

RANK = """
import hashlib, os, sys, time
path = sys.argv[1]
digest, turns = b"", 0
while True:
    digest = hashlib.sha256(digest).digest()
    turns += 1
    if turns % 2000 == 0:
        with open(path + ".new", "w") as file:
            file.write(f"{turns} {digest.hex()}")
        os.replace(path + ".new", path)
        time.sleep(0.005)
"""


def expected(turns: int) -> str:
    digest = b""
    for _ in range(turns):
        digest = hashlib.sha256(digest).digest()
    return digest.hex()


def progress(path: Path) -> int:
    text = path.read_text().split() if path.exists() else []
    return int(text[0]) if text else 0


def wait_for_progress(paths: list[Path]) -> None:
    """Every rank goes on from where it is now."""
    before = [progress(path) for path in paths]
    wait_for("every rank to go on", lambda: all(progress(path) > old for path, old in zip(paths, before, strict=True)))


@on_every_python
def test_killed_at_any_moment_it_leaves_every_rank_running(tmp_path: Path, interpreter: Interpreter) -> None:
    """GIVEN ranks at work WHEN `why` is killed with -9 at random moments THEN they go on, with right results."""
    paths = [tmp_path / f"rank{rank}" for rank in range(RANKS)]
    # Seeded: a failure can be had again.
    moments = random.Random(7)
    with Place(tmp_path, interpreter) as place:
        ranks = [
            place.start(
                [interpreter.path, "-c", RANK, str(path)], launcher_variables(rank, RANKS), stdin=subprocess.DEVNULL
            )
            for rank, path in enumerate(paths)
        ]
        words = [BREAKRANKS, "why", "pid:" + ",".join(str(rank.pid) for rank in ranks)]
        wait_for_progress(paths)
        for _ in range(ROUNDS if interpreter == THIS else ROUNDS_ELSEWHERE):
            inspector = place.start(words, stdout=subprocess.DEVNULL, start_new_session=True)
            time.sleep(moments.uniform(0.05, 1.6))
            # The whole group: py-spy and the native workers die with it. The watchdog has a session of its own.
            os.killpg(inspector.pid, signal.SIGKILL)
            inspector.wait()
            wait_for_progress(paths)
        # A worker that reads C frames has a session of its own too, and ends what it has begun.
        wait_for(
            "no rank to be stopped", lambda: not any(process_state.process_state(rank.pid) in "TtZX" for rank in ranks)
        )
    for path in paths:
        turns, digest = path.read_text().split()
        assert digest == expected(int(turns))


def test_a_worker_whose_reader_has_gone_stops_nobody(tmp_path: Path) -> None:
    """GIVEN a worker that reads C frames WHEN who started it has gone THEN it ends, without a look."""
    with Place(tmp_path) as place:
        rank = place.start([sys.executable, "-c", "import time; time.sleep(600)"])
        ours, theirs = os.pipe()
        os.close(ours)
        try:
            worker = place.start(
                [sys.executable, "-m", "breakranks.observe.native_frames", str(rank.pid)], stdout=theirs
            )
        finally:
            os.close(theirs)
        assert worker.wait(DEADLINE_SECONDS) == 0  # else it would have failed to write what it saw


def test_nothing_of_ours_is_left_running(tmp_path: Path) -> None:
    """GIVEN a look that was interrupted THEN the watchdog, too, is gone a moment later."""
    with Place(tmp_path) as place:
        rank = place.start([sys.executable, "-c", "import time; time.sleep(600)"])
        inspector = place.start(
            [BREAKRANKS, "why", f"pid:{rank.pid}", "--interval", "600"],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        children = Path(f"/proc/{inspector.pid}/task/{inspector.pid}/children")
        ours = [int(pid) for pid in wait_for("the watchdog", lambda: children.read_text().split())]
        inspector.send_signal(signal.SIGINT)
        assert inspector.wait(DEADLINE_SECONDS) == 130
        wait_for("all of ours to be gone", lambda: not any(alive(pid) for pid in ours))
