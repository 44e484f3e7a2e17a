"""The ways into the hosts of the rig work, and the jobs on them stand where they say, before ours are tried."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from .launch import Job, by_hand, torchrun, under_mpirun, under_srun
from .nodes import Nodes
from .slurm import Slurm
from .transports import mpirun, pdsh_environment
from .watch import leaves_nothing

PY_SPY = Path(sys.executable).parent / "py-spy"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), 3, ssh=True) as running:
        yield running


@pytest.fixture(scope="module")
def slurm(nodes: Nodes) -> Iterator[Slurm]:
    with Slurm(nodes.folder / "slurm", nodes) as running:
        yield running


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


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def where(job: Job) -> list[str]:
    """The functions of the program that each rank is in, innermost first."""
    found = []
    for host, pid in job.ranks.values():
        dump = host.run([PY_SPY, "dump", "--nonblocking", "--pid", str(pid)], check=True).stdout
        lines = [line.split() for line in dump.splitlines() if line.startswith("    ")]
        found.append(" ".join(words[0] for words in lines))
    return found


def test_pdsh(nodes: Nodes) -> None:
    out = run(["pdsh", "-S", "-w", "n[1-3]", "hostname"], **pdsh_environment(nodes))
    assert sorted(out.splitlines()) == ["n1: n1", "n2: n2", "n3: n3"]


def test_mpirun(nodes: Nodes) -> None:
    assert sorted(run(mpirun(nodes, ["n1", "n3"], 2, "hostname")).split()) == ["n1", "n3"]


def test_srun_enters_a_running_job_on_all_its_hosts(nodes: Nodes, slurm: Slurm) -> None:
    job = slurm.submit("srun sleep 1000\n", "-N2", "-n2")
    wait_for(lambda: all("sleep 1000" in str(nodes[name].processes().values()) for name in ("n1", "n2")))
    step = ["srun", f"--jobid={job}", "--overlap", "-N2", "-n2", "sh", "-c", "hostname; pgrep -c sleep"]
    assert sorted(run(step, **slurm.environment).split()) == ["1", "1", "n1", "n2"]
    slurm.cancel(job)


def test_straggler_of_torchrun(nodes: Nodes) -> None:
    with torchrun(nodes, ["n1", "n2"], "straggler", "1", c10d=True) as job:
        assert {rank: host.name for rank, (host, _) in job.ranks.items()} == {0: "n1", 1: "n2"}
        waits, late = where(job)
        assert "all_reduce" in waits
        assert late == "load_batch train <module>"


def test_straggler_of_mpirun(nodes: Nodes) -> None:
    with under_mpirun(nodes, ["n1", "n2"], "straggler", "0") as job:
        late, waits = where(job)
        assert ("all_reduce" in waits, late) == (True, "load_batch train <module>")


def test_straggler_of_srun(nodes: Nodes, slurm: Slurm) -> None:
    with under_srun(nodes, slurm, 2, "straggler", "1") as (job, _):
        waits, late = where(job)
        assert ("all_reduce" in waits, late) == (True, "load_batch train <module>")


def test_a_job_without_torch(nodes: Nodes) -> None:
    with by_hand(nodes, ["n1", "n2", "n3"], "plain", "2", python="/usr/bin/python3") as job:
        assert [words.split()[-3:] for words in where(job)] == [
            ["gather", "train", "<module>"],
            ["report", "train", "<module>"],
            ["load_batch", "train", "<module>"],
        ]
