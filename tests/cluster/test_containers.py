"""A job of two podman containers, asked from their host by ``exec:``, and seen on their host without any target."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from .containers import Containers
from .launch import JOBS
from .nodes import Host, Nodes
from .run_breakranks import BREAKRANKS, PATIENT, Seen

LATE = 1
SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Pair:
    """Two containers of one rank each, and the ids of these as the host counts."""

    host: Host
    containers: Containers
    pids: dict[int, int]

    def look(self, command: str, *words: str, status: int | None = None) -> Seen:
        """Run breakranks on the host."""
        done = self.host.run([BREAKRANKS, command, *words], env={"BREAKRANKS_DEADLINE": str(PATIENT)})
        seen = Seen(done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in seen.whole and (status is None or seen.status == status), seen
        return seen

    def children(self, rank: int) -> list[str]:
        """The children of a rank; those that have ended and were not waited for, too."""
        found = self.host.run(["sh", "-c", f"cat /proc/{self.pids[rank]}/task/*/children"], check=True)
        return found.stdout.split()

    def target(self, names: str = "box[1-2]", options: str = "-i") -> str:
        return f"exec:{self.containers.podman} exec {options} {{host}}@{names}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Nodes(tmp_path_factory.mktemp("nodes"), 1) as nodes:
        host = nodes["n1"]
        containers = Containers(host)
        program = nodes.folder / "plain.py"
        program.write_text((JOBS / "plain.py").read_text())
        pids = {}
        for rank in range(2):
            variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
            variables["RIG_DIR"] = str(nodes.folder)
            command = [SYSTEM_PYTHON, str(program), str(LATE)]
            pids[rank] = containers.start(f"box{rank + 1}", command, variables, nodes.folder)
        wait_for(lambda: all((nodes.folder / f"ready.{rank}").exists() for rank in pids), "both ranks to be ready")
        yield Pair(host, containers, pids)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.05)


def functions(answer: dict[str, Any]) -> dict[str, set[str]]:
    return {one["ranks"]: {frame["function"] for frame in one["frames"]} for one in answer["classes"]}


def test_asked_through_podman_exec(pair: Pair) -> None:
    (job,) = pair.look("ps", pair.target(), "--json", status=0).json["jobs"]
    assert (job["ranks"], job["hosts"], job["unseen"]) == ("0-1", "box[1-2]", "")
    assert [(one["host"], one["pid"]) for one in job["processes"]] == [("box1", 1), ("box2", 1)]
    seen = functions(pair.look("stacks", pair.target(), "--json", status=0).json)
    assert "gather" in seen["0"] and "load_batch" in seen["1"]
    verdict = pair.look("why", pair.target(), "--json", status=1).json["verdict"]
    assert verdict["culprits"] == "1" and "rank 1 (box2, pid 1)" in verdict["summary"]
    assert all(one["stops_at"] is None for one in pair.look("hosts", pair.target(), "--json", status=0).json["hosts"])


def test_a_rank_that_is_pid_1_of_its_container_gets_no_children(pair: Pair) -> None:
    """It waits for none, so whatever became its child would stay for as long as it lives."""
    pair.look("stacks", pair.target(), status=0)
    assert [pair.children(rank) for rank in pair.pids] == [[], []]


def test_containers_that_share_tmp_and_their_process_ids(pair: Pair) -> None:
    """Each rank answers for itself, though both are pid 1 and /tmp is the same."""
    answers = pair.look("eval", pair.target(), "RANK * 10", "--json", status=0).json["answers"]
    assert {one["ranks"]: one["value"] for one in answers} == {"0": "0", "1": "10"}
    text = pair.look("attach", pair.target(), "-c", "p RANK * 10", status=0).out
    assert re.search(r"^\[0\] +0\b", text, re.MULTILINE) and re.search(r"^\[1\] +10\b", text, re.MULTILINE), text


def test_seen_from_their_host(pair: Pair) -> None:
    (job,) = pair.look("ps", "--json", status=0).json["jobs"]
    assert (job["ranks"], job["unseen"]) == ("0-1", "")
    assert {one["rank"]: one["pid"] for one in job["processes"]} == pair.pids
    seen = functions(pair.look("stacks", "--json", status=0).json)
    assert "gather" in seen["0"] and "load_batch" in seen["1"]
    assert pair.look("why", "--json", status=1).json["verdict"]["culprits"] == "1"
    text = pair.look("attach", "-c", "p RANK * 10", status=0).out
    assert re.search(r"^\[0\] +0\b", text, re.MULTILINE) and re.search(r"^\[1\] +10\b", text, re.MULTILINE), text


def test_a_terminal_is_refused(pair: Pair) -> None:
    """With one, what is sent would block, and podman could not even stop the container afterwards."""
    seen = pair.look("stacks", pair.target(options="-it"), status=2)
    assert "-it" in seen.err and "exec -i" in seen.err


def test_what_podman_says(pair: Pair) -> None:
    """GIVEN a container that has ended, and one that never was WHEN asked THEN each is said."""
    pair.containers.start("box3", ["/bin/true"], {}, pair.host.folder)
    pair.containers.call("wait", "box3")
    hosts = pair.look("hosts", pair.target("box[3-4]"), "--json", status=2).json["hosts"]
    whole = {one["host"]: str(one) for one in hosts}
    assert "is not running" in whole["box3"] and "no such container" in whole["box4"], whole
    hosts = pair.look("hosts", pair.target("box1", options=""), "--json", status=2).json["hosts"]
    assert "standard input" in str(hosts), hosts
