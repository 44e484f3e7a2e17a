"""Every command from a login node of Slurm, at a job of srun on three hosts; ssh alone would not find them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ClusterShell.NodeSet import NodeSet

from . import commands
from .launch import Job, under_srun
from .leftovers import leaves_nothing
from .nodes import MACHINE, Nodes
from .run_breakranks import Looker, breakranks
from .slurm import Slurm

OF_RANKS = "/tmp/breakranks-0"


@pytest.fixture(scope="module")
def running(nodes: Nodes, slurm: Slurm) -> Iterator[tuple[Job, str]]:
    with under_srun(nodes, slurm, 3, "straggler", str(commands.LATE)) as found:
        yield found


@pytest.fixture
def job(running: tuple[Job, str]) -> Job:
    return running[0]


@pytest.fixture
def look(running: tuple[Job, str], nodes: Nodes, slurm: Slurm) -> Looker:
    return by_slurm(nodes, slurm, running[1])


def by_slurm(nodes: Nodes, slurm: Slurm, job: str) -> Looker:
    return Looker(nodes.folder, (f"slurm:{job}",), slurm.environment)


def test_the_job_stands_where_it_says(job: Job) -> None:
    commands.wait_until_in_place(job)


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_command(command: str, look: Looker, job: Job, nodes: Nodes) -> None:
    with leaves_nothing(nodes, but=OF_RANKS):
        commands.COMMANDS[command](look, job)


def test_a_stopped_rank(look: Looker, job: Job) -> None:
    commands.stopped_rank(look, job)


def test_a_step(running: tuple[Job, str], nodes: Nodes, slurm: Slurm) -> None:
    job, number = running
    commands.stacks(by_slurm(nodes, slurm, f"{number}.0"), job)


def test_a_breakpoint_and_another_job_on_the_same_hosts(look: Looker, job: Job, nodes: Nodes, slurm: Slurm) -> None:
    with under_srun(nodes, slurm, 2, "stops") as (other, number):
        assert {host.name for host, _ in other.ranks.values()} & {"n1", "n2", "n3"}
        # Without a word about which of the two: a Slurm job is one.
        commands.ps(look, job)
        commands.console(by_slurm(nodes, slurm, number), other)


def test_jobs_are_listed(running: tuple[Job, str], nodes: Nodes, slurm: Slurm) -> None:
    seen = breakranks(nodes.folder, "ps", "slurm:", environment=slurm.environment)
    assert running[1] in seen.whole and "n[1-3]" in seen.whole


def test_a_job_that_is_not_there(nodes: Nodes, slurm: Slurm) -> None:
    seen = by_slurm(nodes, slurm, "4242")("why", status=2)
    assert "4242" in seen.err
    assert not seen.out


def test_without_slurm_it_says_so(nodes: Nodes) -> None:
    seen = breakranks(nodes.folder, "why", "slurm:1", environment={"PATH": str(Path(sys.executable).parent)})
    assert (seen.status, seen.out) == (2, "")
    assert "squeue" in seen.err


def lost(answer: dict[str, Any]) -> set[str]:
    return {name for one in answer["job"]["lost_hosts"] for name in NodeSet(one["hosts"])}


def test_a_host_that_is_gone_is_lost_and_the_others_are_seen(look: Looker, job: Job, nodes: Nodes) -> None:
    """The last one: slurmctld notices, and ends the job."""
    nodes.cut_between(MACHINE, "n1")
    try:
        answer = look.losing("stacks", "--json", fine=lambda seen: lost(seen.json) == {"n1"}).json
    finally:
        nodes.heal_between(MACHINE, "n1")
    assert lost(answer) == {"n1"}
    assert (answer["job"]["ranks"], answer["job"]["unseen"]) == ("1-2", "0")
