"""Breakpoints of jobs over two hosts: ranks hold for one on another host, and do not wait for it when it is gone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.consoles import records
from support.waiting import wait_for

from .launch import Job, job_of
from .nodes import INTERFACE, Nodes, Process

PYTHON = sys.executable
LAYOUT = ("n1", "n1", "n2")
CONSOLE = str(Path(sys.executable).parent / "breakranks")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE}
# Each stop, and each time a rank has passed one, is a file in the folder that the hosts share.
PROGRAM = """
import os, sys
import breakranks

rank, total = int(os.environ["RANK"]), int(os.environ["RANK"])
if sys.argv[1] == "torch":
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
for step in range(int(sys.argv[2])):
    breakranks.breakpoint()
    open(f"passed{step}.{rank}", "w").close()
    if sys.argv[1] == "torch":
        given = torch.tensor([total])
        dist.all_reduce(given)
        total = int(given)
        with open(f"total{step}.{rank}", "w") as file:
            file.write(str(total))
"""


@pytest.fixture
def job(nodes: Nodes) -> Iterator[Job]:
    """A folder that n1 and n2 share; what is started there ends with the test."""
    with job_of(nodes, "breakpoints", 4) as running:
        (running.folder / "program.py").write_text(PROGRAM)
        yield running
    nodes.mend()


def by_hand(job: Job, layout: Sequence[str], *script: str, **environment: str) -> list[Process]:
    """A rank on each host of a layout, without a launcher."""
    started = []
    for rank, name in enumerate(layout):
        local, here = layout[:rank].count(name), layout.count(name)
        env = {**ENVIRONMENT, "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(len(layout))}
        env |= {"LOCAL_WORLD_SIZE": str(here), "MASTER_ADDR": "n1", "MASTER_PORT": "29400", **environment}
        started.append(job.start(job.nodes[name], [PYTHON, "program.py", *script], env))
    return started


def torchrun(job: Job, *script: str) -> None:
    launcher = [PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=job"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400"]
    for name in ("n1", "n2"):
        job.start(job.nodes[name], [*launcher, *rendezvous, "program.py", *script], ENVIRONMENT)


def console(job: Job, host: str, *commands: str) -> list[dict[str, Any]]:
    words = [word for command in commands for word in ("-c", command)]
    done = job.nodes[host].run([CONSOLE, "console", "--json", "--wait=110", *words], timeout=240)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return records(done.stdout)


def logs(job: Job) -> str:
    return "".join(path.read_text(errors="replace") for path in job.folder.glob("*.log"))


def all_stop(job: Job, host: str, roles: dict[int, str]) -> list[dict[str, Any]]:
    """Wait until the ranks of a host are stopped, in these roles; what its console says of them."""

    def so() -> list[dict[str, Any]] | None:
        (table,) = console(job, host, "ranks")
        rows = [one for one in table["ranks"] if one["state"] == "stopped"]
        return rows if {one["rank"]: one["role"] for one in rows} == roles else None

    return wait_for(f"{host}: {roles}", so)


def both_stop(job: Job, *there: int) -> list[dict[str, Any]]:
    """Wait until ranks 0 and 1 on n1 are stopped, and these on n2."""
    rows = all_stop(job, "n1", {0: "prompt", 1: "held"})
    return rows + all_stop(job, "n2", dict.fromkeys(there or (2, 3), "held"))


def passed(job: Job, step: int) -> list[int]:
    return sorted(int(path.suffix[1:]) for path in job.folder.glob(f"passed{step}.*"))


def all_pass(job: Job, step: int, *ranks: int) -> None:
    wait_for(f"{ranks} pass {step}", lambda: passed(job, step) == list(ranks))


def test_torchrun_over_two_hosts(job: Job) -> None:
    torchrun(job, "torch", "3")
    both_stop(job)
    time.sleep(1)
    assert passed(job, 0) == []
    rank, _ = console(job, "n1", "p rank", "go")
    assert [(one["ranks"], one["text"]) for one in rank["answers"]] == [("0", "0")]
    all_pass(job, 0, 0, 1, 2, 3)

    # Somebody on the other host lets its ranks go, and those alone.
    both_stop(job)
    (table,) = console(job, "n2", "ranks")
    assert (table["absent"], {one["host"] for one in table["ranks"]}) == ("0-1", {"n2"})
    console(job, "n2", "go 2-3")
    all_pass(job, 1, 2, 3)
    time.sleep(1)
    assert passed(job, 1) == [2, 3]
    console(job, "n1", "go")
    all_pass(job, 1, 0, 1, 2, 3)
    wait_for("all have added", lambda: [path.read_text() for path in job.folder.glob("total1.*")] == ["24"] * 4)

    # The rank that all hold for dies: nobody waits for it for ever.
    rows = both_stop(job)
    assert "cannot be told" not in logs(job)
    (pid,) = [one["pid"] for one in rows if one["rank"] == 0]
    job.nodes["n1"].run(["kill", "-9", str(pid)], check=True)
    wait_for("the ranks on n2 go on or end", lambda: set(passed(job, 2)) >= {2, 3} or ended(job, rows))


def ended(job: Job, rows: list[dict[str, Any]]) -> bool:
    """Whether the processes of the ranks on n2 are gone."""
    pids = [str(one["pid"]) for one in rows if one["host"] == "n2"]
    return job.nodes["n2"].run(["kill", "-0", *pids]).returncode != 0


def test_ranks_that_are_cut_off_from_the_one_they_hold_for_go_on(job: Job) -> None:
    by_hand(job, LAYOUT, "torch", "1")
    rows = both_stop(job, 2)
    time.sleep(1)
    assert passed(job, 0) == []
    job.nodes.cut("n2")
    time.sleep(1)

    def went() -> bool:
        return passed(job, 0) == [2] or ended(job, rows)

    done = job.nodes["n2"].run([CONSOLE, "console", "--json", "--wait=110", "-c", "ranks"], timeout=240)
    if not went():  # whom they hold for is gone, their own host is not
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert json.loads(done.stdout)["absent"] == "0-1"
    wait_for("the rank on n2 goes on or ends", went)
    all_stop(job, "n1", {0: "prompt", 1: "held"})  # these have not lost each other


def test_without_torch_hosts_meet_in_a_shared_folder(job: Job) -> None:
    started = by_hand(job, LAYOUT, "plain", "2", BREAKRANKS_DIR=str(job.folder / "meet"))
    both_stop(job, 2)
    time.sleep(1)
    assert passed(job, 0) == []
    console(job, "n1", "p rank", "go")
    all_pass(job, 0, 0, 1, 2)

    both_stop(job, 2)
    started[0].kill()
    all_pass(job, 1, 1, 2)
    assert [process.wait(60) for process in started] == [-9, 0, 0]
    assert "cannot be told" not in logs(job)
