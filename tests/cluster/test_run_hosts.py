"""`breakranks run` over two hosts: each rank's prefix is made on its host, and its lines come by srun and mpirun."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .host import inherited
from .launch import Job, job_of
from .nodes import Nodes
from .slurm import Slurm
from .transports import mpirun

PYTHON = sys.executable
BREAKRANKS = str(Path(sys.executable).parent / "breakranks")
PROGRAM = str(Path(__file__).parent / "jobs" / "printing.py")
LONG = 120.0
HOSTS = ("n1", "n2")
COUNT = 2000
# Longer than what a relay may write at once into a pipe that others write into too.
LONG_LINE = "x" * 10_000


def run(job: Job, *command: str, options: Sequence[str] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    """Run on the machine, which is the login node. The log folder is on the file system that the hosts share."""
    words = [BREAKRANKS, "run", "--log-dir", str(job.folder / "logs"), *options, "--", *command]
    env = {**inherited(), "RIG_DIR": str(job.folder), "TMPDIR": str(job.folder), **environ}
    with open(job.folder / "run.out", "w") as out, open(job.folder / "run.err", "w") as err:
        process = subprocess.Popen(words, env=env, cwd=job.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    job.started.append(process)
    status = process.wait(LONG)
    shown = [(job.folder / name).read_text(errors="replace") for name in ("run.out", "run.err")]
    return subprocess.CompletedProcess(words, status, *shown)


def assert_shown(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """GIVEN a rank on each host THEN each is shown with its short host name, whole and in order, and logged."""
    assert done.returncode == 0, (done.returncode, done.stdout[-1000:], done.stderr[-1000:])
    lines = done.stdout.splitlines()
    for rank, host in enumerate(HOSTS):
        prefix = f"[{host[1:]}:{rank}] "
        mine = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        wanted = [f"rank {rank} on {host}", *(f"line {at}" for at in range(COUNT)), LONG_LINE, "end"]
        assert_same(mine, wanted)
        assert f"{prefix}a warning" in done.stderr.splitlines(), done.stderr[-2000:]
        kept = (folder / "logs" / "latest" / f"rank-{rank}.out").read_text().splitlines()
        assert_same(kept, wanted)
    lines = [line for line in lines if not line.startswith("Welcome to")]  # n2 greets all that come by ssh
    counted = len(lines)
    assert counted == 2 * (COUNT + 3), [line[:100] for line in lines if not line.startswith("[")][:20]


def assert_same(found: list[str], wanted: list[str]) -> None:
    """Print the first difference only."""
    for at, (one, other) in enumerate(zip(found, wanted, strict=False)):
        same = one == other
        assert same, (at, one[:100], one[-100:], other[:100], len(one), len(other))
    counts = len(found), len(wanted)
    assert counts[0] == counts[1], (counts, found[-1][:100])


@pytest.mark.parametrize("label", [(), ("--label",)], ids=["plain", "label"])
def test_srun_on_two_hosts(nodes: Nodes, slurm: Slurm, label: tuple[str, ...]) -> None:
    with job_of(nodes, "run-srun", 2) as job:
        command = ["srun", *label, "-N2", "-n2", "--nodelist=n1,n2", PYTHON, PROGRAM, str(COUNT), str(len(LONG_LINE))]
        assert_shown(run(job, *command, **slurm.environment), job.folder)


@pytest.mark.parametrize("tags", [(), ("--tag-output",)], ids=["plain", "tags"])
def test_mpirun_on_two_hosts(nodes: Nodes, tags: tuple[str, ...]) -> None:
    with job_of(nodes, "run-mpirun", 2) as job:
        command = mpirun(
            nodes, HOSTS, 2, *tags, "-x", f"RIG_DIR={job.folder}", PYTHON, PROGRAM, str(COUNT), str(len(LONG_LINE))
        )
        assert_shown(run(job, *command), job.folder)


def test_equal_lines_of_two_hosts_are_folded(nodes: Nodes, slurm: Slurm) -> None:
    with job_of(nodes, "run-fold", 2) as job:
        command = ["srun", "-N2", "-n2", "--nodelist=n1,n2", PYTHON, PROGRAM, "3", "10"]
        done = run(job, *command, options=["--fold", "--only", "0-1"], **slurm.environment)
        assert done.returncode == 0, done
        shown = done.stdout.splitlines()
        for text in ("line 0", "line 2", "end"):
            assert f"[1-2:0-1] {text}" in shown or {f"[1:0] {text}", f"[2:1] {text}"} <= {*shown}, done
