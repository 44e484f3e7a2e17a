"""A healthy job on four hosts, broken from outside in the ways that hosts and networks break: what `why` says of it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ClusterShell.NodeSet import NodeSet

from breakranks.rankset import RankSet
from support.waiting import wait_for

from .launch import Job, by_hand
from .leftovers import leaves_nothing
from .nodes import Nodes
from .run_breakranks import HASTY, PATIENT, Looker, Seen, breakranks, by_ssh

AGENT = re.compile(r"-c .*breakranks|breakranks.*agent")
OF_RANKS = "/tmp/breakranks-0"
LONGEST_STALL = 10.0  # seconds: of what cannot be done again


@pytest.fixture(scope="module")
def nodes(nodes: Nodes) -> Iterator[Nodes]:
    with nodes.more({"n4": None}):
        yield nodes


@pytest.fixture(scope="module")
def job(nodes: Nodes) -> Iterator[Job]:
    """Rank 0 to 3 on n1 to n4. Tests mend what they break; those that cannot are the last ones."""
    with by_hand(nodes, ["n1", "n2", "n3", "n4"], "steady") as running:
        yield running


@pytest.fixture
def look(nodes: Nodes) -> Looker:
    return by_ssh(nodes, "n[1-4]")


@contextmanager
def broken(job: Job, break_it: Callable[[], object], mend_it: Callable[[], object]) -> Iterator[None]:
    break_it()
    try:
        job.wait_until_it_stands()
        yield
    finally:
        mend_it()
    job.wait_until_it_goes_on()


def lost(answer: dict[str, Any]) -> dict[str, str]:
    rows = answer["job"]["lost_hosts"]
    assert all(one["reason"] and one["remedy"] for one in rows), rows
    return {name: one["state"] for one in rows for name in NodeSet(one["hosts"])}


def wait_for_agents(process: subprocess.Popen[str], nodes: Nodes, names: list[str]) -> bool:
    """Until they are there; False where the command that starts them has ended before."""

    def there() -> bool:
        return all(any(map(AGENT.search, nodes[name].processes().values())) for name in names)

    wait_for("agents", lambda: process.poll() is not None or there())
    return process.poll() is None


def test_a_healthy_job_has_no_verdict(look: Looker, job: Job, nodes: Nodes) -> None:
    with leaves_nothing(nodes, but=OF_RANKS):
        answer = look("why", "--json", status=0).json
    assert (answer["verdict"], answer["job"]["ranks"], lost(answer)) == (None, "0-3", {})


def test_a_stopped_rank(look: Looker, job: Job) -> None:
    with broken(job, lambda: job.signal(1, signal.SIGSTOP), lambda: job.signal(1, signal.SIGCONT)):
        found = look("why", "--json", status=1).json["verdict"]
    pid = job.ranks[1][1]
    assert (found["kind"], found["culprits"], found["victims"]) == ("rank-stopped", "1", "0,2-3")
    assert f"rank 1 (n2, pid {pid})" in found["summary"]
    assert any("n2" in line and f"kill -CONT {pid}" in line for line in found["next"])


def test_a_partial_cut_names_the_pair(look: Looker, job: Job, nodes: Nodes) -> None:
    file = nodes.folder / "partial.brk"
    with broken(job, lambda: nodes.cut_between("n2", "n3"), lambda: nodes.heal_between("n2", "n3")):
        answer = look("why", "--json", f"--save={file}", status=1).json
    assert lost(answer) == {}
    found = answer["verdict"]
    assert found["confidence"] == "certain"
    assert "between n2 and n3" in found["summary"]
    assert "n1" not in found["summary"] and "n4" not in found["summary"]
    later = breakranks(nodes.folder, "why", "--json", str(file)).json["verdict"]
    assert {name: later[name] for name in ("kind", "summary")} == {name: found[name] for name in ("kind", "summary")}


def test_a_cut_link_is_a_lost_host_that_the_others_wait_for(look: Looker, job: Job, nodes: Nodes) -> None:
    with broken(job, lambda: nodes.cut("n2"), lambda: nodes.heal("n2")):
        seen = look.losing("why", "--json", fine=lambda seen: lost(seen.json) == {"n2": "unreachable"})
    answer = seen.json
    assert seen.status == 1
    assert lost(answer) == {"n2": "unreachable"}
    assert (answer["job"]["ranks"], answer["job"]["unseen"]) == ("0,2-3", "1")
    found = answer["verdict"]
    assert (found["culprits"], found["victims"]) == ("1", "0,2-3")
    assert "n2" in found["summary"]
    assert found["confidence"] != "certain"
    # It may have entered, as the others have. Of those, one may be a call behind another: packets of n2 reached some.
    assert 1 not in said_not_to_have_entered(answer), seen


def said_not_to_have_entered(answer: dict[str, Any]) -> RankSet:
    found = RankSet()
    for finding in answer["findings"]:
        if finding["cause"]["type"] == "NotEntered":
            found |= RankSet.parse(finding["culprits"])
        for fact in finding["facts"]:
            found |= RankSet.parse(fact.get("absent", ""))
            found |= RankSet.parse(fact["others"] if fact["type"] == "SideWaits" else "")
    return found


def test_a_host_that_freezes_in_mid_look(look: Looker, job: Job, nodes: Nodes) -> None:
    for deadline in (HASTY, PATIENT / 2):
        seen = frozen_in_mid_look(look, nodes, deadline)
        job.wait_until_it_goes_on()
        if seen.out and lost(seen.json).keys() == {"n3"}:  # else it was too late for it, or too early for the others
            break
    assert lost(seen.json).keys() == {"n3"}, seen
    assert {0, 1, 3} <= ranks(seen.json), seen


def frozen_in_mid_look(look: Looker, nodes: Nodes, deadline: float) -> Seen:
    with leaves_nothing(nodes, but=OF_RANKS):
        process = look.start("why", "--json", f"--deadline={deadline}")
        try:
            if wait_for_agents(process, nodes, ["n1", "n2", "n3", "n4"]):
                nodes["n3"].freeze()
            out, err = process.communicate(timeout=180)
        finally:
            process.kill()
            nodes["n3"].thaw()
            process.communicate(timeout=60)
    return Seen(process.returncode, out, err)


def test_a_bare_host_with_full_disks_is_seen_as_well_as_the_others(look: Looker, job: Job, nodes: Nodes) -> None:
    nodes["n3"].hide_breakranks()
    nodes["n3"].fill("/tmp", "/var/tmp", "/run")
    # The ranks were gone into before; now there is no room, and nothing of ours but what is sent.
    with leaves_nothing(nodes, but=OF_RANKS):
        answer = look("stacks", "--json", status=0).json
        assert (answer["job"]["ranks"], lost(answer)) == ("0-3", {})
        text = look("stacks", status=0).out
        assert "4 ranks" in text and "n[1-4]" in text
        values = look("eval", "rank * 10", "--json", status=0).json["answers"]
        assert sorted(one["value"] for one in values) == ["0", "10", "20", "30"]
        with broken(job, lambda: job.signal(2, signal.SIGSTOP), lambda: job.signal(2, signal.SIGCONT)):
            found = look("why", "--json", status=1).json["verdict"]
            assert (found["kind"], found["culprits"], found["victims"]) == ("rank-stopped", "2", "0-1,3")
            text = look("why", status=1).out
            assert "4 ranks" in text and "rank 2 (n3" in text


def test_a_host_that_is_gone_in_mid_look(look: Looker, job: Job, nodes: Nodes) -> None:
    """The last one: n4 does not come back."""
    process = look.start("why", "--json", f"--deadline={LONGEST_STALL}")
    try:
        assert wait_for_agents(process, nodes, ["n1", "n2", "n4"]), process.communicate(timeout=60)
        nodes.crash("n4")
        out, err = process.communicate(timeout=180)
    finally:
        process.kill()
        process.communicate(timeout=60)
    seen = Seen(process.returncode, out, err)
    assert lost(seen.json).keys() == {"n4"}, seen
    assert {0, 1, 2} <= ranks(seen.json), seen  # n4 may have been sampled once
    # And once more, now that it is known to be gone.
    seen = look.losing("why", "--json", fine=lambda seen: lost(seen.json) == {"n4": "unreachable"})
    answer = seen.json
    assert seen.status == 1
    assert lost(answer) == {"n4": "unreachable"}
    found = answer["verdict"]
    assert (found["culprits"], found["victims"]) == ("3", "0-2"), answer["findings"]


def ranks(answer: dict[str, Any]) -> set[int]:
    return set(RankSet.parse(answer["job"]["ranks"]))
