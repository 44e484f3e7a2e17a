"""Real launchers start sleeping ranks; every rank is found, under its number, and nobody else."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from breakranks.observe.process_table import read_table
from breakranks.rankset import RankSet
from cluster.slurm import Slurm

from .running import (
    BIN,
    HERE,
    PYTHON,
    SLEEPER,
    TORCHRUN,
    Launch,
    assert_ranks_are,
    free_port,
    numbers,
    rank_of,
    wait_for,
)

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    with Launch(tmp_path) as running:
        yield running


def torchrun(launch: Launch, port: int, *options: str, ranks: int = 2, script: tuple[str, ...] = ()) -> None:
    launch.start(
        TORCHRUN, f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1", f"--master-port={port}", *options,
        SLEEPER, str(launch.folder), *script,
    )  # fmt: skip


def stack_of(pid: int) -> Sequence[Mapping[str, Any]] | None:
    done = subprocess.run(
        [str(BIN / "py-spy"), "dump", "--json", "--locals", "--pid", str(pid)],
        capture_output=True, timeout=90,
    )  # fmt: skip
    return json.loads(done.stdout) if done.returncode == 0 else None  # type: ignore[no-any-return]


def never(pid: int) -> Sequence[Mapping[str, Any]] | None:
    raise AssertionError(f"the stack of pid {pid} was asked for")


# --- torchrun ----------------------------------------------------------------------------------------


def test_torchrun_has_ranks_and_helpers_are_none(launch: Launch) -> None:
    port = free_port()
    torchrun(launch, port, ranks=3, script=("--fork", "2", "--spawn", "1", "--subprocess", "1"))
    pids = launch.ready("rank", 3)
    launch.ready("helper", 12)

    job = launch.job(stack_of=never)

    assert_ranks_are(job, pids)
    assert [rank.local_rank for rank in job.ranks] == [0, 1, 2]
    assert job.missing == ()
    assert (job.job.key, job.job.launcher, job.job.world_size) == (f"torchrun-{port}", "torchrun", 3)
    assert job.job.launcher_pid == launch.started[0].pid
    assert job.job.ids["MASTER_PORT"] == str(port)
    assert any("torchrun" in word for word in job.job.command)


def test_two_torchruns_are_two_jobs(launch: Launch) -> None:
    ports = sorted((free_port(), free_port()))
    for port in ports:
        torchrun(launch, port, ranks=2)
    pids = launch.ready("rank", 4)

    jobs = launch.jobs()

    assert sorted(job.job.key for job in jobs) == sorted(f"torchrun-{port}" for port in ports)
    assert [numbers(job) for job in jobs] == [[0, 1], [0, 1]]
    assert sorted(rank.pid for job in jobs for rank in job.ranks) == pids


def test_two_agents_of_one_torchrun_are_one_job_and_ranks_of_another_node_are_elsewhere(launch: Launch) -> None:
    port = free_port()
    for node in range(2):
        torchrun(launch, port, "--nnodes=2", f"--node-rank={node}")
    pids = launch.ready("rank", 4)

    job = launch.job()

    assert_ranks_are(job, pids)
    assert numbers(job) == [0, 1, 2, 3]
    assert job.missing == ()

    # The second node is "another host": its agent first, so that it cannot report; then its ranks.
    second = [pid for pid in pids if rank_of(pid) >= 2]
    os.kill(launch.started[1].pid, signal.SIGSTOP)
    for pid in (launch.started[1].pid, *second):
        os.kill(pid, signal.SIGKILL)
    launch.started[1].wait(timeout=60)
    wait_for("the ranks are gone", lambda: not set(second) & set(launch.pids()))

    job = launch.job()

    assert numbers(job) == [0, 1]
    assert [(one.ranks, one.reason) for one in job.missing] == [("2-3", "elsewhere")]


def test_a_killed_rank_that_nobody_reaped_keeps_its_place_and_its_workers_do_not_take_it(launch: Launch) -> None:
    torchrun(launch, free_port(), script=("--fork", "2"))
    ranks = launch.ready("rank", 2)
    workers = launch.ready("helper", 4)
    victim = next(pid for pid in ranks if rank_of(pid) == 1)
    parents = {entry.pid: entry.ppid for entry in read_table() if entry.pid in workers}
    # Torchrun ends the whole job when it sees a rank die: keep it from seeing.
    os.kill(launch.started[0].pid, signal.SIGSTOP)
    os.kill(victim, signal.SIGKILL)
    left = sorted(pid for pid in workers if parents[pid] == victim)
    wait_for("the workers have another parent", lambda: _parents(left) != {victim})

    job = launch.job()

    # A stopped launcher cannot reap: its dead child is still there, and is still rank 1.
    assert {rank.rank: rank.pid for rank in job.ranks} == {rank_of(p): p for p in ranks if p != victim} | {1: victim}


def _parents(pids: Sequence[int]) -> set[int]:
    table = read_table()
    return {entry.ppid for pid in pids if (entry := table.get(pid))}


def test_a_shell_around_the_rank_is_not_the_rank(launch: Launch) -> None:
    port = free_port()
    launch.start(
        TORCHRUN, "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}", "--no-python",
        "bash", "-c", f"{shlex.join([PYTHON, str(SLEEPER), str(launch.folder)])}; true",
    )  # fmt: skip
    pids = launch.ready("rank", 2)

    job = launch.job()

    assert_ranks_are(job, pids)
    assert job.job.launcher_pid == launch.started[0].pid


# --- by hand -----------------------------------------------------------------------------------------


def by_hand(launch: Launch, rank: int, world: int, port: int, *script: str) -> subprocess.Popen[bytes]:
    env = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return launch.start(PYTHON, SLEEPER, str(launch.folder), *script, env=env)


def test_plain_python_with_rank_set(launch: Launch) -> None:
    port = free_port()
    for rank in range(3):
        by_hand(launch, rank, 4, port)
    pids = launch.ready("rank", 3)

    job = launch.job()

    assert_ranks_are(job, pids)
    assert (job.job.key, job.job.launcher, job.job.world_size) == (f"python-{port}", "python", 4)
    assert [(one.ranks, one.reason) for one in job.missing] == [("3", "absent")]


def test_a_zombie_rank_keeps_its_place(launch: Launch) -> None:
    port = free_port()
    started = [by_hand(launch, rank, 2, port) for rank in range(2)]
    launch.ready("rank", 2)
    os.kill(started[1].pid, signal.SIGKILL)
    wait_for("a zombie", lambda: (entry := read_table().get(started[1].pid)) and entry.state == "Z")

    job = launch.job()

    assert [(rank.rank, rank.pid) for rank in job.ranks] == [(0, started[0].pid), (1, started[1].pid)]
    assert job.missing == ()


def test_a_dead_rank_by_hand_left_forked_workers(launch: Launch) -> None:
    port = free_port()
    by_hand(launch, 0, 2, port)
    dead = by_hand(launch, 1, 2, port, "--fork", "2")
    launch.ready("rank", 2)
    workers = launch.ready("helper", 2)
    dead.kill()
    dead.wait(timeout=60)
    wait_for("the workers have another parent", lambda: dead.pid not in _parents(workers))

    job = launch.job()

    assert numbers(job) == [0]
    (missing,) = job.missing
    assert (missing.ranks, missing.reason) == ("1", "exited")
    assert f"left helpers behind (pid {RankSet(workers)})" in missing.detail


def test_plain_multiprocessing_is_no_job(launch: Launch) -> None:
    launch.start(PYTHON, SLEEPER, str(launch.folder), "--fork", "2", "--spawn", "2")
    launch.ready("helper", 4)
    launch.ready("rank", 1)

    assert launch.jobs() == []
    assert launch.jobs(stack_of=stack_of) == []


# --- MPI and Slurm -----------------------------------------------------------------------------------


def test_mpirun(launch: Launch) -> None:
    mpirun = launch.start(*MPIRUN, "-n", "3", PYTHON, SLEEPER, str(launch.folder), "--fork", "1")
    pids = launch.ready("rank", 3)
    launch.ready("helper", 3)

    job = launch.job(stack_of=never)

    assert_ranks_are(job, pids, "OMPI_COMM_WORLD_RANK")
    assert [rank.local_rank for rank in job.ranks] == [0, 1, 2]
    assert (job.job.key, job.job.launcher, job.job.world_size) == (f"mpirun-{mpirun.pid}", "mpirun", 3)
    assert job.missing == ()


def test_two_mpiruns_are_two_jobs(launch: Launch) -> None:
    for _ in range(2):
        launch.start(*MPIRUN, "-n", "2", PYTHON, SLEEPER, str(launch.folder))
    launch.ready("rank", 4)

    jobs = launch.jobs()

    assert {job.job.launcher_pid for job in jobs} == {process.pid for process in launch.started}
    assert [numbers(job) for job in jobs] == [[0, 1], [0, 1]]


def srun(launch: Launch, slurm: Slurm, tasks: int, *command: str) -> None:
    launch.start("srun", "--overlap", f"-n{tasks}", "--kill-on-bad-exit=0", *command, env=slurm.environment)


def test_srun(launch: Launch, slurm: Slurm) -> None:
    srun(launch, slurm, 3, PYTHON, SLEEPER, str(launch.folder), "--fork", "1")
    pids = launch.ready("rank", 3)
    launch.ready("helper", 3)

    job = launch.job(stack_of=never)

    assert_ranks_are(job, pids, "SLURM_PROCID")
    ids = job.job.ids
    assert job.job.key == f"slurm-{ids['SLURM_JOB_ID']}.{ids['SLURM_STEP_ID']}"
    assert (job.job.launcher, job.job.world_size, job.missing) == ("slurm", 3, ())


def test_srun_a_task_that_ended_is_missing_and_a_shell_is_no_rank(launch: Launch, slurm: Slurm) -> None:
    srun(launch, slurm, 3, "bash", "-c", f"{shlex.join([PYTHON, str(SLEEPER), str(launch.folder)])} --fork 1; true")
    pids = launch.ready("rank", 3)
    workers = launch.ready("helper", 3)
    victim = next(pid for pid in pids if rank_of(pid, "SLURM_PROCID") == 1)
    parents = {entry.pid: entry.ppid for entry in read_table() if entry.pid in workers}
    (worker,) = [pid for pid in workers if parents[pid] == victim]
    os.kill(victim, signal.SIGKILL)
    wait_for("the worker has another parent", lambda: victim not in _parents([worker]))

    job = launch.job()

    assert_ranks_are(job, [pid for pid in pids if pid != victim], "SLURM_PROCID")
    (missing,) = job.missing
    assert (missing.ranks, missing.reason) == ("1", "exited")
    assert str(worker) in missing.detail


def test_torchrun_inside_srun_is_torchrun(launch: Launch, slurm: Slurm) -> None:
    port = free_port()
    srun(
        launch, slurm, 1, TORCHRUN, "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}",
        SLEEPER, str(launch.folder), "--fork", "1",
    )  # fmt: skip
    pids = launch.ready("rank", 2)
    launch.ready("helper", 2)

    job = launch.job()

    assert_ranks_are(job, pids)
    assert job.job.key == f"torchrun-{port}"


# --- torch.multiprocessing.spawn ---------------------------------------------------------------------


def test_spawn_ranks_are_told_by_their_stacks(launch: Launch) -> None:
    parent = launch.start(PYTHON, str(HERE / "spawn_program.py"), str(launch.folder), "2")
    launch.ready("rank", 2)
    launch.ready("worker", 2)

    job = launch.job(stack_of=stack_of)

    assert (job.job.key, job.job.launcher, job.job.world_size) == (f"spawn-{parent.pid}", "spawn", 2)
    assert {rank.rank: rank.pid for rank in job.ranks} == {
        int(path.read_text()): int(path.suffix[1:]) for path in launch.folder.glob("rank.*")
    }
    # Without the stacks the same processes, though only a guess which is which.
    assert {rank.pid for rank in launch.job().ranks} == {rank.pid for rank in job.ranks}
