"""Sixteen hosts by ssh: seen as one job, and the living are shown before a dead one among them is given up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .launch import Job, by_hand
from .leftovers import leaves_nothing
from .nodes import MACHINE, Nodes
from .run_breakranks import Looker, by_ssh

COUNT = 16
# The second one for a machine that stood still in the first.
DEADLINES = (8.0, 40.0, 40.0)


@pytest.fixture(scope="module")
def nodes(nodes: Nodes) -> Iterator[Nodes]:
    with nodes.more({f"n{number}": None for number in range(len(nodes.hosts) + 1, COUNT + 1)}):
        yield nodes


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


def test_the_living_are_shown_while_a_dead_one_is_waited_for(look: Looker, job: Job, nodes: Nodes) -> None:
    nodes.cut_between(MACHINE, "n7")
    try:
        for deadline in DEADLINES:
            living, awaited, rest = living_first(look, deadline)
            if awaited and "15 of 16 ranks" in living:
                break
    finally:
        nodes.heal_between(MACHINE, "n7")
    assert awaited, f"n7 was given up before the living were shown: {living}"
    assert "15 of 16 ranks" in living
    assert "n7" in rest


def living_first(look: Looker, deadline: float) -> tuple[str, bool, str]:
    """What is shown up to the stacks of the living, whether n7 is still waited for then, and what comes after that."""
    process = look.start("stacks", f"--deadline={deadline}")
    try:
        shown = ""
        while "load_batch" not in shown:
            line = process.stdout.readline()
            if not line:  # too soon for those that live
                return shown, False, process.stderr.read()
            shown += line
        awaited = any("n7" in words for words in children(process.pid))
        rest, _ = process.communicate(timeout=deadline + 60)
    finally:
        process.kill()
        process.communicate(timeout=60)
    return shown, awaited, rest


def children(pid: int) -> list[list[str]]:
    """The command lines of what a process has started, and what runs."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in path.read_text().split():
                found.append(Path(f"/proc/{child}/cmdline").read_text().split("\0"))
    return found
