"""Ranks of a job that come to their folder, and leave it, at the same moment: nobody takes away what is another's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RANKS = 2
PROGRAM = """
import os, sys, time
from breakranks.inside.rank import folder, identity
from breakranks.inside.rank.agent import Agent

print("up", flush=True)
sys.stdin.readline()
lost = 0
for _ in range(1500):
    agent = Agent(identity.who())
    path = f"{agent.path}/{agent.pid}.sock"
    time.sleep(0.0002)
    lost += not os.path.exists(path)
    agent.wire.close()
    folder.remove(agent.path, os.path.basename(path))
print("lost", lost)
"""


def test_who_comes_while_another_clears_up_keeps_its_socket(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    ranks = []
    try:
        for rank in range(RANKS):
            named = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_PORT": "29500"}
            env = {**os.environ, **named, "MASTER_ADDR": "localhost", "BREAKRANKS_RUN": str(run)}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM],
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        for one in ranks:
            assert one.stdout is not None and one.stdout.readline() == "up\n"
        for one in ranks:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        assert [one.communicate(timeout=120)[0] for one in ranks] == RANKS * ["lost 0\n"]
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
    assert list(run.iterdir()) == []
