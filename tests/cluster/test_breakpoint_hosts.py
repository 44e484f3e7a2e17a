"""Breakpoints of jobs over two hosts: ranks hold for one on another host, and do not wait for it when it is gone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .nodes import INTERFACE, Nodes, Process

PYTHON = sys.executable
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
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "program.py").write_text(PROGRAM)
    with Nodes(tmp_path) as running:
        yield running


def by_hand(nodes: Nodes, *script: str, **environment: str) -> list[Process]:
    """Two ranks a host, without a launcher."""
    started = []
    for rank in range(4):
        host = list(nodes)[rank // 2]
        env = {**ENVIRONMENT, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), **environment}
        with open(nodes.folder / f"{host.name}.log", "ab") as log:
            started.append(host.popen([PYTHON, "program.py", *script], env=env, stdout=log, stderr=log))
    return started


def torchrun(nodes: Nodes, *script: str) -> list[Process]:
    launcher = [PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=job"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400"]
    started = []
    for host in nodes:
        with open(nodes.folder / f"{host.name}.log", "ab") as log:
            command = [*launcher, *rendezvous, "program.py", *script]
            started.append(host.popen(command, env=ENVIRONMENT, stdout=log, stderr=log))
    return started


def console(nodes: Nodes, host: str, *commands: str) -> list[dict[str, Any]]:
    words = [word for command in commands for word in ("-c", command)]
    done = nodes[host].run([CONSOLE, "console", "--json", *words], timeout=120)
    assert done.returncode == 0, (done.stdout, done.stderr, logs(nodes))
    return [json.loads(line) for line in done.stdout.splitlines()]


def logs(nodes: Nodes) -> str:
    return "\n".join((nodes.folder / f"{host.name}.log").read_text(errors="replace")[-3000:] for host in nodes)


def all_stop(nodes: Nodes, host: str, roles: dict[int, str]) -> list[dict[str, Any]]:
    """Wait until the ranks of a host are stopped, in these roles; what its console says of them."""

    def so() -> list[dict[str, Any]] | None:
        (table,) = console(nodes, host, "ranks")
        rows = [one for one in table["ranks"] if one["state"] == "stopped"]
        return rows if {one["rank"]: one["role"] for one in rows} == roles else None

    return wait_for(nodes, f"{host}: {roles}", so, 120)


def both_stop(nodes: Nodes) -> list[dict[str, Any]]:
    rows = all_stop(nodes, "n1", {0: "prompt", 1: "held"})
    return rows + all_stop(nodes, "n2", {2: "held", 3: "held"})


def passed(nodes: Nodes, step: int) -> list[int]:
    return sorted(int(path.suffix[1:]) for path in nodes.folder.glob(f"passed{step}.*"))


def all_pass(nodes: Nodes, step: int, *ranks: int, within: float = 60.0) -> None:
    wait_for(nodes, f"{ranks} pass {step}", lambda: passed(nodes, step) == list(ranks), within)


def wait_for(nodes: Nodes, what: str, condition: Callable[[], Any], within: float) -> Any:
    end = time.monotonic() + within
    while not (answer := condition()):
        assert time.monotonic() < end, f"after {within:.0f} s still not: {what}\n{logs(nodes)}"
        time.sleep(0.05)
    return answer


def test_torchrun_over_two_hosts(nodes: Nodes) -> None:
    torchrun(nodes, "torch", "3")
    both_stop(nodes)
    time.sleep(1)
    assert passed(nodes, 0) == []
    rank, _ = console(nodes, "n1", "p rank", "go")
    assert [(one["ranks"], one["text"]) for one in rank["answers"]] == [("0", "0")]
    all_pass(nodes, 0, 0, 1, 2, 3)

    # Somebody on the other host lets its ranks go, and those alone.
    both_stop(nodes)
    (table,) = console(nodes, "n2", "ranks")
    assert (table["absent"], {one["host"] for one in table["ranks"]}) == ("0-1", {"n2"})
    console(nodes, "n2", "go 2-3")
    all_pass(nodes, 1, 2, 3)
    time.sleep(1)
    assert passed(nodes, 1) == [2, 3]
    console(nodes, "n1", "go")
    all_pass(nodes, 1, 0, 1, 2, 3)
    wait_for(nodes, "all have added", lambda: len(list(nodes.folder.glob("total1.*"))) == 4, 60)
    assert {path.read_text() for path in nodes.folder.glob("total1.*")} == {"24"}

    # The rank that all hold for dies: nobody waits for it for ever.
    rows = both_stop(nodes)
    assert "cannot be told" not in logs(nodes)
    (pid,) = [one["pid"] for one in rows if one["rank"] == 0]
    nodes["n1"].run(["kill", "-9", str(pid)], check=True)
    wait_for(nodes, "the ranks on n2 go on or end", lambda: set(passed(nodes, 2)) >= {2, 3} or ended(nodes, rows), 60)


def ended(nodes: Nodes, rows: list[dict[str, Any]]) -> bool:
    """Whether the processes of the ranks on n2 are gone."""
    pids = [str(one["pid"]) for one in rows if one["host"] == "n2"]
    return nodes["n2"].run(["kill", "-0", *pids]).returncode != 0


def test_ranks_that_are_cut_off_from_the_one_they_hold_for_go_on(nodes: Nodes) -> None:
    by_hand(nodes, "torch", "1")
    rows = both_stop(nodes)
    time.sleep(1)
    assert passed(nodes, 0) == []
    nodes.cut("n2")
    time.sleep(1)

    def went() -> bool:
        return passed(nodes, 0) == [2, 3] or ended(nodes, rows)

    done = nodes["n2"].run([CONSOLE, "console", "--json", "-c", "ranks"], timeout=120)
    if not went():  # whom they hold for is gone, their own host is not
        assert done.returncode == 0, (done.stdout, done.stderr, logs(nodes))
        assert json.loads(done.stdout)["absent"] == "0-1"
    wait_for(nodes, "the ranks on n2 go on or end", went, 120)
    all_stop(nodes, "n1", {0: "prompt", 1: "held"})  # these have not lost each other


def test_without_torch_hosts_meet_in_a_shared_folder(nodes: Nodes) -> None:
    started = by_hand(nodes, "plain", "2", BREAKRANKS_DIR=str(nodes.folder / "meet"))
    both_stop(nodes)
    time.sleep(1)
    assert passed(nodes, 0) == []
    console(nodes, "n1", "p rank", "go")
    all_pass(nodes, 0, 0, 1, 2, 3)

    both_stop(nodes)
    started[0].kill()
    all_pass(nodes, 1, 1, 2, 3)
    assert [process.wait(60) for process in started] == [-9, 0, 0, 0]
    assert "cannot be told" not in logs(nodes)
