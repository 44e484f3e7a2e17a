"""Launchers that come with a framework. Each must be installed in the Python that runs the tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from .running import BIN, HERE, PYTHON, SLEEPER, Launch, assert_ranks_are, free_port, numbers, rank_of

INSTALL = "pip install torch==2.13.0 accelerate lightning deepspeed mindspore"


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    with Launch(tmp_path) as running:
        yield running


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.fail(f"{package} is not installed in {PYTHON}. Install what these tests launch: {INSTALL}")


def test_accelerate(launch: Launch) -> None:
    need("accelerate")
    port = free_port()
    agent = launch.start(
        str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
        "--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={port}",
        SLEEPER, str(launch.folder), "--fork", "1",
    )  # fmt: skip
    pids = launch.ready("rank", 2, deadline=120)
    launch.ready("helper", 2)

    job = launch.job()

    assert_ranks_are(job, pids)
    assert (job.job.key, job.job.launcher, job.job.world_size) == (f"accelerate-{port}", "accelerate", 2)
    assert job.job.launcher_pid == agent.pid
    assert job.missing == ()


def test_deepspeed(launch: Launch) -> None:
    need("deepspeed")
    port = free_port()
    launch.start(
        str(BIN / "deepspeed"), "--num_gpus=2", f"--master_port={port}",
        SLEEPER, str(launch.folder), "--fork", "1",
        env={"DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    pids = launch.ready("rank", 2, deadline=120)
    launch.ready("helper", 2)

    job = launch.job()

    assert_ranks_are(job, pids)
    assert (job.job.key, job.job.launcher, job.job.world_size) == (f"deepspeed-{port}", "deepspeed", 2)
    assert any("deepspeed.launcher.launch" in word for word in job.job.command)
    assert job.missing == ()


def test_lightning_rank_0_is_the_parent(launch: Launch) -> None:
    need("lightning")
    parent = launch.start(PYTHON, str(HERE / "lightning_program.py"), str(launch.folder), "3")
    pids = launch.ready("rank", 3, deadline=180)

    job = launch.job()

    assert job.job.launcher == "lightning"
    assert job.job.world_size == 3
    assert {rank.rank: rank.pid for rank in job.ranks} == {
        0: parent.pid,
        **{rank_of(pid, "LOCAL_RANK"): pid for pid in pids if pid != parent.pid},
    }
    assert numbers(job) == [0, 1, 2]
    assert job.missing == ()


def test_msrun_scheduler_is_no_rank(launch: Launch) -> None:
    need("mindspore")
    port = free_port()
    agent = launch.start(
        str(BIN / "msrun"), "--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True",
        f"--log_dir={launch.folder / 'logs'}", SLEEPER, str(launch.folder), "--fork", "1",
    )  # fmt: skip
    everyone = launch.ready("rank", 3, deadline=240)
    launch.ready("helper", 3)

    job = launch.job()

    with_role = {pid: _role(pid) for pid in everyone}
    assert sorted(with_role.values()) == ["MS_SCHED", "MS_WORKER", "MS_WORKER"]
    assert_ranks_are(job, [pid for pid in everyone if with_role[pid] == "MS_WORKER"], "RANK_ID")
    assert (job.job.key, job.job.launcher, job.job.world_size) == (f"msrun-{port}", "msrun", 2)
    assert job.job.launcher_pid == agent.pid
    assert job.missing == ()


def _role(pid: int) -> str:
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(item for item in environ if item.startswith(b"MS_ROLE=")).decode().partition("=")[2]
