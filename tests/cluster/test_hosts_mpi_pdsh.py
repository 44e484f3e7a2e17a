"""Every command over the hosts of a hostfile, over pdsh, and over a command of one's own, at a job of mpirun."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ClusterShell.NodeSet import NodeSet

from . import commands
from .in_process import run_here
from .launch import Job, by_hand, under_mpirun
from .leftovers import leaves_nothing
from .nodes import MACHINE, Nodes, Odd
from .run_breakranks import Looker
from .transports import hostfile, pdsh_environment

OF_RANKS = "/tmp/breakranks-0"
WAYS = ("mpi", "pdsh", "exec")


@pytest.fixture(scope="module")
def nodes(nodes: Nodes) -> Iterator[Nodes]:
    with nodes.more({"n4": Odd(refuses=True), "n5": None, "n6": None}):
        yield nodes


@pytest.fixture(scope="module")
def job(nodes: Nodes) -> Iterator[Job]:
    with under_mpirun(nodes, ["n1", "n2", "n3"], "straggler", str(commands.LATE)) as running:
        yield running


def by(way: str, nodes: Nodes, *names: str, options: str = "") -> Looker:
    """``options`` are for the ssh of a command of one's own."""
    hosts = str(NodeSet(",".join(names)))
    if way == "exec":
        wrapper = f"ssh {options}-F {shlex.quote(str(nodes.ssh_config))} {{host}} {{command}}"
        return Looker(nodes.folder, (f"exec:{wrapper}@{hosts}",), {})
    where = str(hostfile(nodes, names)) if way == "mpi" else hosts
    return Looker(nodes.folder, (f"{way}:{where}", f"--ssh-config={nodes.ssh_config}"), {})


@pytest.mark.parametrize("way", WAYS)
def test_console(way: str, nodes: Nodes) -> None:
    """The first one: once ranks of another job have been attached to, a console asks which job is meant."""
    with under_mpirun(nodes, ["n1", "n2"], "stops") as job:
        commands.console(by(way, nodes, "n1", "n2"), job)


def test_the_job_stands_where_it_says(job: Job) -> None:
    commands.wait_until_in_place(job)


# A command of one's own that is ssh goes as ssh: does, where all of them are tried.
@pytest.mark.parametrize(
    ("way", "command"),
    [*itertools.product(("mpi", "pdsh"), commands.COMMANDS), ("exec", "ps"), ("exec", "why"), ("exec", "attach")],
)
def test_command(command: str, way: str, job: Job, nodes: Nodes) -> None:
    with leaves_nothing(nodes, but=OF_RANKS):
        commands.COMMANDS[command](by(way, nodes, "n1", "n2", "n3"), job)


def test_a_stopped_rank(nodes: Nodes, job: Job) -> None:
    commands.stopped_rank(by("mpi", nodes, "n1", "n2", "n3"), job)


def test_pdsh_to_hosts_without_breakranks(nodes: Nodes, tmp_path: Path) -> None:
    """GIVEN hosts that have only the Python of their system, and a pdsh that knows them WHEN asked THEN they answer."""
    names = ["n5", "n6"]
    (tmp_path / "hosts").write_text("n[5-6]\n")
    with by_hand(nodes, names, "plain", "1", python="/usr/bin/python3"):
        for name in names:
            nodes[name].hide_our_python()
        look = Looker(nodes.folder, ("pdsh:",), {**pdsh_environment(nodes), "WCOLL": str(tmp_path / "hosts")})
        with leaves_nothing(nodes):
            answer = look("stacks", "--json", "--deadline=20", status=0).json
    assert (answer["job"]["hosts"], answer["job"]["ranks"], answer["job"]["lost_hosts"]) == ("n[5-6]", "0-1", [])
    functions = {one["ranks"]: {frame["function"] for frame in one["frames"]} for one in answer["classes"]}
    assert "gather" in functions["0"] and "load_batch" in functions["1"]


def lost_of(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: one for one in answer["job"]["lost_hosts"] for name in NodeSet(one["hosts"])}


def kinds(lost: dict[str, Any]) -> dict[str, str]:
    return {name: one["state"] for name, one in lost.items()}


@pytest.mark.parametrize("way", WAYS)
def test_lost_hosts(way: str, nodes: Nodes, job: Job) -> None:
    """n4 lets nobody in, and n3 cannot be reached; the rest is seen."""
    expected = {"n3": "unreachable", "n4": "refused"}
    nodes.cut_between(MACHINE, "n3")
    try:
        with leaves_nothing(nodes, but=OF_RANKS):
            look = by(way, nodes, "n1", "n2", "n3", "n4", options="-oConnectTimeout=2 ")  # before our own deadline
            answer = look.losing("stacks", "--json", fine=lambda seen: kinds(lost_of(seen.json)) == expected).json
    finally:
        nodes.heal_between(MACHINE, "n3")
    lost = lost_of(answer)
    assert kinds(lost) == expected
    assert all(one["reason"] for one in lost.values())
    assert (answer["job"]["ranks"], answer["job"]["unseen"]) == ("0-1", "2")


def test_a_hostfile_as_people_write_them(nodes: Nodes, job: Job, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the cluster\n\nn1 slots=2 max_slots=4\n n2:2\nn3\n")
    look = Looker(nodes.folder, (f"mpi:{file}", f"--ssh-config={nodes.ssh_config}"), {})
    commands.stacks(look, job)


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=touch${IFS}x", "$(touch x)", "`touch x`", "n1;touch x", "n1 && touch x", "'; touch x; '"]
)
@pytest.mark.parametrize("template", ["sh -c 'true {host}' ", "ssh -F {config} {host} {command}", "echo {host}"])
def test_hostile_names_reach_no_shell(
    template: str, host: str, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = template.replace("{config}", shlex.quote(str(nodes.ssh_config)))
    monkeypatch.chdir(tmp_path)
    seen = run_here(["stacks", f"exec:{wrapper}@{host}", "--deadline", "3"])
    assert seen.status == 2, seen
    assert "unexpected" not in seen.err and "Traceback" not in seen.err, seen
    assert os.listdir(tmp_path) == []
    assert not (nodes.folder / "x").exists()
