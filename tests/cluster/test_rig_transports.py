"""The ways into the hosts of the rig work, before ours are tried."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from support.waiting import wait_for

from .launch import by_hand
from .leftovers import leaves_nothing
from .nodes import Nodes
from .slurm import Slurm
from .transports import mpirun, pdsh_environment


@pytest.fixture(autouse=True)
def nothing_is_left(nodes: Nodes) -> Iterator[None]:
    with leaves_nothing(nodes, files=False):  # torchrun, when killed, leaves its folder
        yield


def run(command: Sequence[str], **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pdsh(nodes: Nodes) -> None:
    out = run(["pdsh", "-S", "-w", "n[1-3]", "hostname"], **pdsh_environment(nodes))
    assert sorted(out.splitlines()) == ["n1: n1", "n2: Welcome to n2", "n2: n2", "n3: n3"]


def test_mpirun(nodes: Nodes) -> None:
    assert sorted(run(mpirun(nodes, ["n1", "n3"], 2, "hostname")).split()) == ["n1", "n3"]


def test_srun_enters_a_running_job_on_all_its_hosts(nodes: Nodes, slurm: Slurm) -> None:
    job = slurm.submit("srun sleep 1000\n", "-N2", "-n2")
    task = re.compile(r"(?:\S*/)?sleep 1000")  # and not srun, which has the same words
    wait_for("both tasks", lambda: all(any(map(task.fullmatch, nodes[n].processes().values())) for n in ("n1", "n2")))
    step = ["srun", f"--jobid={job}", "--overlap", "-N2", "-n2", "sh", "-c", "hostname; pgrep -c sleep"]
    assert sorted(run(step, **slurm.environment).split()) == ["1", "1", "n1", "n2"]
    slurm.cancel(job)


def test_a_job_without_torch(nodes: Nodes) -> None:
    with by_hand(nodes, ["n1", "n2", "n3"], "plain", "2", python="/usr/bin/python3") as job:
        places = [[function, "train", "<module>"] for function in ("gather", "report", "load_batch")]
        wait_for("each rank is in its place", lambda: [words.split()[-3:] for words in job.functions()] == places)
