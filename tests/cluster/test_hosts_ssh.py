"""Every command over ssh, at a real job on real hosts; what is lost is said, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ClusterShell.NodeSet import NodeSet

from support.waiting import wait_for

from . import commands
from .in_process import run_here
from .launch import Job, by_hand, torchrun
from .leftovers import leaves_nothing, seen_meanwhile
from .nodes import MACHINE, Host, Nodes, Odd
from .run_breakranks import Looker, breakranks, by_ssh

BASHRC = 'echo "Welcome to $(hostname)"; echo "@br1 is what others say too"; printf "You have mail. "\n'
AHEAD = 300
# What ranks that were gone into keep for as long as they live: their socket.
OF_RANKS = "/tmp/breakranks-0"


@pytest.fixture(scope="module")
def nodes(nodes: Nodes) -> Iterator[Nodes]:
    odd = {
        "n4": Odd(banner="Property of the University.\n", bashrc=BASHRC),
        "n5": Odd(),
        "n6": Odd(clock=AHEAD),
        "n7": Odd(refuses=True),
        "n8": Odd(),
    }
    with nodes.more(odd):
        yield nodes


@pytest.fixture(scope="module")
def job(nodes: Nodes) -> Iterator[Job]:
    with torchrun(nodes, ["n1", "n2", "n3"], "straggler", str(commands.LATE), c10d=True) as running:
        yield running


@pytest.fixture(scope="module")
def plain(nodes: Nodes) -> Iterator[Job]:
    """A job of the system's own Python on four odd hosts: one that greets, one bare and full, one ahead, one more."""
    with by_hand(nodes, ["n4", "n5", "n6", "n8"], "plain", "3", python="/usr/bin/python3") as running:
        nodes["n5"].hide_our_python()
        nodes["n5"].fill("/tmp", "/var/tmp", "/run")
        yield running


@pytest.fixture
def look(nodes: Nodes) -> Looker:
    return by_ssh(nodes, "n[1-3]")


def test_the_job_stands_where_it_says(job: Job) -> None:
    assert {rank: host.name for rank, (host, _) in job.ranks.items()} == {0: "n1", 1: "n2", 2: "n3"}
    commands.wait_until_in_place(job)


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_command(command: str, look: Looker, job: Job, nodes: Nodes) -> None:
    with leaves_nothing(nodes, but=OF_RANKS):
        commands.COMMANDS[command](look, job)


def test_texts(look: Looker, job: Job) -> None:
    commands.texts(look, job)


def test_console(nodes: Nodes) -> None:
    with by_hand(nodes, ["n1", "n2"], "stops") as job:
        commands.console(by_ssh(nodes, "n[1-2]"), job)


def test_each_host_logs_under_its_name(nodes: Nodes, job: Job) -> None:
    """GIVEN three hosts of a job and one that refuses THEN -vv has the lines of each, and why one is lost."""
    names = ("n1", "n2", "n3")
    looked = [word for name in names for word in (f"host answered host={name} answer=SampleTaken ", f"{name}:observe")]
    seen = by_ssh(nodes, "n[1-3,7]").losing("stacks", "-vv", fine=lambda seen: all(one in seen.err for one in looked))
    for name in names:
        assert (
            f"host connected host={name} " in seen.err and f"host answered host={name} answer=SampleTaken " in seen.err
        ), seen
        assert re.search(rf"DEBUG {name}:observe\[\d+\] ran argv=.*py-spy", seen.err), seen
    assert re.search(r"INFO hosts\[\d+\] started argv=.*ssh .* n7 \(agent\)", seen.err), seen
    assert re.search(r"host lost host=n7 kind=\w+ why=", seen.err), seen
    assert not re.search("br_say|[A-Za-z0-9+/]{200}", seen.err), seen


def test_looking_from_outside_leaves_nothing_and_opens_no_port(look: Looker, nodes: Nodes, job: Job) -> None:
    hosts = [nodes[name] for name in ("n1", "n2", "n3")]
    agents = re.compile(r"breakranks|python.*-c")

    def watch() -> set[str]:
        found = {f"listens {host.name} {one}" for host in hosts for one in host.listeners()}
        own = {pid for host, pid in job.ranks.values()}
        return found | {"agent" for host in hosts for text in host.processes().values() if agents.search(text) and own}

    wait_for("the agents of earlier looks have ended", lambda: "agent" not in watch())
    before = watch()
    with leaves_nothing(nodes), seen_meanwhile(watch) as seen:
        look("why", "--no-inject", status=1)
    assert seen == before | {"agent"}


def test_odd_hosts_are_seen_all_the_same(nodes: Nodes, plain: Job) -> None:
    look = by_ssh(nodes, "n[4-6,8]")
    with leaves_nothing(nodes):
        seen = look("ps", "--json", status=0).json
        (one,) = seen["jobs"]
        assert (one["ranks"], one["hosts"], one["unseen"]) == ("0-3", "n[4-6,8]", "")
        assert not one["lost_hosts"]
        classes = look("stacks", "--json", status=0).json["classes"]
        functions = {one["ranks"]: one["frames"][-1]["function"] for one in classes}
        assert functions.keys() == {"0", "1-2", "3"}
        assert any(frame["function"] == "load_batch" for one in classes for frame in one["frames"])


def test_a_clock_that_is_ahead_is_found(nodes: Nodes, plain: Job) -> None:
    seen = by_ssh(nodes, "n[4-6,8]")("why", "--json").json
    (found,) = [one for one in seen["findings"] if "clock" in one["summary"]]
    assert "n6" in found["summary"] and "ahead" in found["summary"]
    (offset,) = found["cause"]["offsets"]
    assert offset["host"] == "n6" and abs(offset["seconds"] - 300) < 5
    assert abs(seen["job"]["clocks"]["n6"] - AHEAD) < 2
    assert all(abs(seen["job"]["clocks"][name]) < 2 for name in ("n4", "n5", "n8"))


def lost_of(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: one for one in answer["job"]["lost_hosts"] for name in NodeSet(one["hosts"])}


def test_lost_hosts_are_a_class_with_the_reason_and_the_rest_is_shown(nodes: Nodes, job: Job) -> None:
    """n7 lets nobody in, n8 has no Python or an old one, n6 is frozen, n5 is cut off, and nobody has heard of n99."""
    old = next(iter(Path.home().glob(".pyenv/versions/3.6.*/bin/python3.6")), None)
    nodes["n8"].remove_pythons(instead=old)
    nodes["n6"].freeze()
    nodes.cut_between(MACHINE, "n5")
    look = by_ssh(nodes, "n[1-3,5-8,99]")
    kinds = {"n5": "unreachable", "n6": "timed-out", "n7": "refused", "n8": "no-python", "n99": "unreachable"}

    def kinds_in(answer: dict[str, Any]) -> dict[str, str]:
        return {name: one["state"] for name, one in lost_of(answer).items()}

    try:
        with leaves_nothing(nodes, but=OF_RANKS):
            seen = look.losing("why", "--json", fine=lambda seen: kinds_in(seen.json) == kinds)
            text = look.losing("stacks", fine=lambda seen: "load_batch" in seen.out)
    finally:
        nodes.heal_between(MACHINE, "n5")
        nodes["n6"].thaw()
    answer = seen.json
    lost = lost_of(answer)
    assert kinds_in(answer) == kinds
    assert all(one["reason"] and one["remedy"] for one in lost.values())
    assert old is None or "3.6" in lost["n8"]["reason"]
    commands.expect_verdict(answer, job)
    assert "load_batch" in text.out
    for name in lost:
        assert name in text.whole or "n[5-8,99]" in text.whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_agents_end_with_their_controller(nodes: Nodes, job: Job, plain: Job, number: int) -> None:
    """n5, where our code was sent to, is among them."""
    names = ["n1", "n2", "n3", "n4", "n5"]
    agents = re.compile(r"-c .*breakranks|breakranks.*agent")

    def running() -> bool:
        return all(any(map(agents.search, nodes[name].processes().values())) for name in names)

    key = by_ssh(nodes, "n[1-3]")("ps", "--json").json["jobs"][0]["key"]
    with leaves_nothing(nodes, but=OF_RANKS):
        process = by_ssh(nodes, "n[1-5]").start("top", "--job", key)
        try:
            wait_for("agents on all hosts", lambda: process.poll() is not None or (running() and sent(nodes["n5"])))
            assert process.poll() is None
            os.kill(process.pid, number)
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate(timeout=60)


def sent(host: Host) -> bool:
    """Whether our code has arrived on a host that lacks it."""
    return any(path.startswith("/dev/shm/breakranks") and path.endswith("/agent.py") for path in host.files())


def test_a_host_behind_another_one(nodes: Nodes, job: Job) -> None:
    config = nodes.folder / "jump_config"
    config.write_text(f"Include {nodes.ssh_config}\nHost n3\n  ProxyCommand ssh -F {nodes.ssh_config} -W %h:%p n2\n")
    look = Looker(nodes.folder, ("ssh:n[1-3]", f"--ssh-config={config}"), {})
    nodes.cut_between(MACHINE, "n3")
    try:
        commands.expect_straggler(look("why", "--json", status=1).json, job)
    finally:
        nodes.heal_between(MACHINE, "n3")


def test_options_for_ssh_and_defaults_from_the_environment(nodes: Nodes, job: Job) -> None:
    seen = breakranks(nodes.folder, "stacks", "ssh:n[1-3]", f"--ssh-options=-F {nodes.ssh_config}")
    assert (seen.status, "load_batch" in seen.out) == (0, True), seen
    target = {"BREAKRANKS_TARGET": "ssh:n[1-3]"}
    seen = breakranks(nodes.folder, "stacks", f"--ssh-config={nodes.ssh_config}", environment=target)
    assert (seen.status, "load_batch" in seen.out) == (0, True), seen


HOSTILE = [
    "ssh:-oProxyCommand=touch${IFS}x",
    "ssh:-oProxyCommand=touch x",
    "ssh:n1,-oProxyCommand=touch${IFS}x",
    "ssh:$(touch x)",
    "ssh:`touch x`",
    "ssh:n1;touch x",
    "ssh:n1|touch x",
    "ssh:n1\ntouch x",
    "ssh:n1 touch x",
    "ssh:me@-oProxyCommand=touch${IFS}x",
    "pdsh:-Rexec touch x",
    "pdsh:$(touch x)",
    "pdsh:^/etc/passwd",
    "slurm:1; touch x",
    "slurm:$(touch x)",
    "exec:echo {host}@$(touch x)",
    "exec:sh -c {host}@touch${IFS}x",
    "exec:ssh {host}@-oProxyCommand=touch${IFS}x",
    "mpi:hostile",
]


@pytest.mark.parametrize("target", HOSTILE)
def test_hostile_names_do_nothing(target: str, tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile").write_text("-oProxyCommand=touch${IFS}x slots=2\n$(touch x)\n`touch x`\n")
    monkeypatch.chdir(tmp_path)
    seen = run_here(["stacks", target, f"--ssh-config={nodes.ssh_config}"])
    assert seen.status == 2, seen
    assert "unexpected" not in seen.err and "Traceback" not in seen.err, seen
    assert sorted(os.listdir(tmp_path)) == ["hostile"]
    places = (Path.home() / "x", "/run/home/x", f"{nodes.folder}/x")
    assert not any(os.path.lexists(f"/proc/{host.pid}/root{path}") for host in nodes for path in places)
