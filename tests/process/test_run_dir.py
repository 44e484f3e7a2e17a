"""Ranks of a job that come to their folder, and leave it, at the same moment: nobody takes away what is another's."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from breakranks.rank import run_dir
from support.waiting import DEADLINE_SECONDS

from .console_program import launcher_variables
from .terminals import Place

RANKS = 2
PROGRAM = """
import os, sys, time
from breakranks.rank import rank_identity, run_dir
from breakranks.rank.agent import RankAgent

print("up", flush=True)
sys.stdin.readline()
lost = 0
for _ in range(600):
    agent = RankAgent(rank_identity.who(), forked=lambda: None, left=lambda agent: None)
    path = f"{agent.path}/{agent.pid}.sock"
    time.sleep(0.0002)
    lost += not os.path.exists(path)
    agent.server.close()
    run_dir.remove(agent.path, os.path.basename(path))
print("lost", lost)
"""


def test_who_comes_while_another_clears_up_keeps_its_socket(tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        ranks = [
            place.start(
                [sys.executable, "-c", PROGRAM],
                launcher_variables(rank, RANKS),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(RANKS)
        ]
        for one in ranks:
            assert one.stdout is not None and one.stdout.readline() == "up\n"
        for one in ranks:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        assert [one.communicate(timeout=DEADLINE_SECONDS)[0] for one in ranks] == RANKS * ["lost 0\n"]
        assert list(place.run.iterdir()) == []


def test_the_time_in_which_the_machine_stood_still_is_no_wait_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a lock whose owner releases it right after a stall of a minute
    with open(tmp_path / "lock", "w") as owned, open(tmp_path / "lock") as wanted:
        fcntl.flock(owned, fcntl.LOCK_EX)
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                fcntl.flock(owned, fcntl.LOCK_UN)

        clock = SimpleNamespace(sleep=sleep, monotonic=lambda: 60.0 if waits else 0.0)
        monkeypatch.setattr(run_dir, "time", clock)

        # THEN
        assert run_dir.locked(wanted.fileno(), 1.0)
