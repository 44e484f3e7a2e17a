"""Sixteen hosts by ssh: seen as one job, and a dead one among them costs no more than the deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .launch import Job, by_hand
from .look import Looker, by_ssh
from .nodes import MACHINE, Nodes
from .watch import leaves_nothing

COUNT = 16
DEADLINE = 8.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), COUNT, ssh=True) as running:
        yield running


@pytest.fixture(scope="module")
def job(nodes: Nodes) -> Iterator[Job]:
    names = [host.name for host in nodes]
    with by_hand(nodes, names, "plain", "9", python="/usr/bin/python3") as running:
        yield running


@pytest.fixture
def look(nodes: Nodes) -> Looker:
    return by_ssh(nodes, f"n[1-{COUNT}]")


def test_all_are_seen_and_folded(look: Looker, job: Job, nodes: Nodes) -> None:
    with leaves_nothing(nodes):
        answer = look("stacks", "--json", status=0).json
    assert (answer["job"]["hosts"], answer["job"]["ranks"], answer["job"]["unseen"]) == ("n[1-16]", "0-15", "")
    functions = {one["ranks"]: {frame["function"] for frame in one["frames"]} for one in answer["classes"]}
    assert functions.keys() == {"0", "1-8,10-15", "9"}
    assert "gather" in functions["0"] and "report" in functions["1-8,10-15"] and "load_batch" in functions["9"]


def test_a_dead_one_costs_no_more_than_the_deadline(look: Looker, job: Job, nodes: Nodes) -> None:
    nodes.cut_between(MACHINE, "n7")
    process = look.start("stacks", "--deadline", str(DEADLINE))
    began = time.monotonic()
    try:
        shown = ""
        while "load_batch" not in shown:
            line = process.stdout.readline()
            assert line, f"ended without the stacks of the living: {shown}{process.stderr.read()}"
            shown += line
        living = time.monotonic() - began
        rest, _ = process.communicate(timeout=30)
        whole = time.monotonic() - began
    finally:
        nodes.heal_between(MACHINE, "n7")
        process.kill()
        process.communicate(timeout=10)
    assert living < DEADLINE - 1
    assert whole < DEADLINE + 4
    assert "15 of 16 ranks" in shown
    assert "n7" in rest
