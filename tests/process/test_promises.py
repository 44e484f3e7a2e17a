"""Promise 1: whatever happens to breakranks, the job that it looks at runs on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from breakranks.observe import state

RANKS = 3
ROUNDS = 12
DEADLINE = 90.0

RANK = """
import hashlib, os, sys, time
path = sys.argv[1]
digest, turns = b"", 0
while not sys.stdin.closed and turns < 10_000_000:
    digest = hashlib.sha256(digest).digest()
    turns += 1
    if turns % 2000 == 0:
        with open(path + ".new", "w") as file:
            file.write(f"{turns} {digest.hex()}")
        os.replace(path + ".new", path)
        time.sleep(0.001)
"""


def expected(turns: int) -> str:
    import hashlib

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
    end = time.monotonic() + DEADLINE
    while not all(progress(path) > old for path, old in zip(paths, before, strict=True)):
        assert time.monotonic() < end, "a rank does not go on"
        time.sleep(0.01)


def test_killed_at_any_moment_it_leaves_every_rank_running(tmp_path: Path) -> None:
    """GIVEN ranks at work WHEN `why` is killed with -9 at random moments THEN they go on, with right results."""
    command = [str(Path(sys.executable).parent / "breakranks"), "why"]
    paths = [tmp_path / f"rank{rank}" for rank in range(RANKS)]
    # Seeded: a failure can be had again.
    moments = random.Random(7)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(path)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_PORT": "1", "MASTER_ADDR": "test"},
            stdin=subprocess.DEVNULL,
        )
        for rank, path in enumerate(paths)
    ]
    target = "pid:" + ",".join(str(rank.pid) for rank in ranks)
    try:
        wait_for_progress(paths)
        for _ in range(ROUNDS):
            looker = subprocess.Popen([*command, target], stdout=subprocess.DEVNULL, start_new_session=True)
            time.sleep(moments.uniform(0.05, 1.6))
            # The whole group: py-spy and the native workers die with it. The watchdog has a session of its own.
            os.killpg(looker.pid, signal.SIGKILL)
            looker.wait()
            wait_for_progress(paths)
        assert not any(state.process_state(rank.pid) in "TtZX" for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for path in paths:
        turns, digest = path.read_text().split()
        assert digest == expected(int(turns))


def test_nothing_of_ours_is_left_running(tmp_path: Path) -> None:
    """GIVEN a look that was interrupted THEN the watchdog, too, is gone a moment later."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as rank:
        try:
            looker = subprocess.Popen(
                [str(Path(sys.executable).parent / "breakranks"), "why", f"pid:{rank.pid}", "--interval", "600"],
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            ours = _wait_for_child(looker.pid)
            looker.send_signal(signal.SIGINT)
            assert looker.wait(DEADLINE) == 130
            end = time.monotonic() + DEADLINE
            while any(state.process_state(pid) not in "XZ" for pid in ours):
                assert time.monotonic() < end, "a process of ours is left"
                time.sleep(0.02)
        finally:
            rank.kill()


def _wait_for_child(pid: int) -> list[int]:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return list(map(int, children))
        time.sleep(0.01)
    raise AssertionError("the watchdog did not start")
