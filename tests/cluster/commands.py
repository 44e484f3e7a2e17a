"""Every command, at a job of three ranks on three hosts of which rank 2 is late: what it must say, by any way."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.waiting import wait_for

from .launch import Job
from .run_breakranks import Looker, breakranks

LATE = 2
WAITING = "0-1"


def wait_until_in_place(job: Job) -> None:
    """A rank is ready a moment before it comes to where it is to be looked at."""

    def there() -> bool:
        waits, *_, late = job.functions()
        return "all_reduce" in waits and late == "load_batch train <module>"

    wait_for("each rank is in its place", there)


def ps(look: Looker, job: Job) -> None:
    (seen,) = look("ps", "--json", status=0).json["jobs"]
    assert (seen["world_size"], seen["ranks"], seen["unseen"]) == (3, "0-2", "")
    assert seen["hosts"] == "n[1-3]"
    where = {one["rank"]: (one["host"], one["pid"]) for one in seen["processes"]}
    assert where == {rank: (host.name, pid) for rank, (host, pid) in job.ranks.items()}


def stacks(look: Looker, job: Job) -> None:
    seen = look("stacks", "--json", status=0).json
    functions = {one["ranks"]: [frame["function"] for frame in one["frames"]] for one in seen["classes"]}
    assert functions.keys() == {WAITING, str(LATE)}
    assert functions[WAITING][:2] == ["<module>", "train"] and "all_reduce" in functions[WAITING]
    assert functions[str(LATE)] == ["<module>", "train", "load_batch"]


def why(look: Looker, job: Job) -> None:
    expect_straggler(look("why", "--json", status=1).json, job)


def snapshot(look: Looker, job: Job) -> None:
    file = job.folder / f"{time.monotonic_ns()}.brk"
    look("snapshot", "-o", str(file), status=0)
    answer = breakranks(look.folder, "why", "--json", str(file))
    assert answer.status == 1
    expect_straggler(answer.json, job)
    assert "load_batch" in breakranks(look.folder, "stacks", str(file)).out
    (seen,) = breakranks(look.folder, "ps", "--json", str(file)).json["jobs"]
    assert (seen["ranks"], seen["hosts"]) == ("0-2", "n[1-3]")


def top(look: Looker, job: Job) -> None:
    text = look("top", "--once", status=1).out
    assert "n[1-3]" in text
    assert f"rank {LATE} (" in text and "load_batch" in text


def collectives(look: Looker, job: Job) -> None:
    seen = look("collectives", "--json", status=1).json
    (group,) = seen["groups"]
    assert (group["ranks"], group["waiting"], group["awaited"]) == ("0-2", WAITING, str(LATE))


def evaluate(look: Looker, job: Job) -> None:
    seen = look("eval", "rank * 10", "--json", status=0).json
    assert {one["ranks"]: one["value"] for one in seen["answers"]} == {"0": "0", "1": "10", "2": "20"}


def attach(look: Looker, job: Job) -> None:
    seen = look("attach", "-c", "p rank", "-c", "where", status=0).out
    for rank in range(3):
        assert f"[{rank}]  {rank}" in seen
    assert re.search(rf"^rank {LATE}: .*load_batch \(inspect only\)$", seen, re.MULTILINE), seen
    assert re.search(rf"^ranks {WAITING}: blocked in all_reduce", seen, re.MULTILINE), seen


def hosts(look: Looker, job: Job) -> None:
    seen = look("hosts", "--json", status=0).json
    assert {one["host"]: one["stops_at"] for one in seen["hosts"]} == {"n1": None, "n2": None, "n3": None}


COMMANDS: dict[str, Callable[[Looker, Job], None]] = {
    "ps": ps,
    "stacks": stacks,
    "why": why,
    "snapshot": snapshot,
    "top": top,
    "collectives": collectives,
    "eval": evaluate,
    "attach": attach,
    "hosts": hosts,
}


def texts(look: Looker, job: Job) -> None:
    """What a person reads, and parts of a job. The data behind it are those of the others."""
    text = look("ps", status=0).out
    assert "3 ranks" in text and "n[1-3]" in text
    text = look("why", status=1).out
    assert f"rank {LATE} ({job.ranks[LATE][0].name}, pid {job.ranks[LATE][1]})" in text and "load_batch" in text
    # What to do next is to be done by the same way.
    assert look.words[0] in "".join(line for line in text.splitlines() if "breakranks " in line)
    text = look("hosts", "--full", status=0).out
    assert all(host.name in text for host, _ in job.ranks.values())
    only = look("stacks", "--json", "--rank", "1", status=0).json
    assert [one["ranks"] for one in only["classes"]] == ["1"]
    only = look("eval", "--rank", str(LATE), "late", "--json", status=0).json
    assert [(one["ranks"], one["value"]) for one in only["answers"]] == [(str(LATE), str(LATE))]


def stopped_rank(look: Looker, job: Job) -> None:
    """The late rank is stopped as well: then that is what holds the others up."""
    job.signal(LATE, signal.SIGSTOP)
    try:
        found = look("why", "--json", status=1).json["verdict"]
    finally:
        job.signal(LATE, signal.SIGCONT)
    host, pid = job.ranks[LATE]
    assert (found["kind"], found["culprits"], found["victims"]) == ("rank-stopped", str(LATE), WAITING)
    assert f"rank {LATE} ({host.name}, pid {pid})" in found["summary"]


def console(look: Looker, job: Job) -> None:
    """At another job, of two ranks that stop at a breakpoint: look, ask, and let them go."""

    def stopped() -> bool:
        (table,) = look("console", "--json", "-c", "ranks", status=0).lines
        rows = [one for one in table["ranks"] if one["state"] == "stopped"]
        return {(one["rank"], one["host"]) for one in rows} == {(r, host.name) for r, (host, _) in job.ranks.items()}

    wait_for("both ranks stop", stopped)
    asked, *_ = look("console", "--json", "-c", "all p rank * 10", "-c", "go", status=0).lines
    assert {one["ranks"]: one["text"] for one in asked["answers"]} == {"0": "0", "1": "10"}
    wait_for("both ranks pass", lambda: len(list(job.folder.glob("passed.*"))) == 2)


def expect_straggler(answer: dict[str, Any], job: Job) -> None:
    expect_verdict(answer, job)
    assert (answer["job"]["hosts"], answer["job"]["unseen"]) == ("n[1-3]", "")
    assert not answer["job"]["lost_hosts"]


def expect_verdict(answer: dict[str, Any], job: Job) -> None:
    found = answer["verdict"]
    host, pid = job.ranks[LATE]
    assert found is not None, answer
    assert (found["kind"], found["culprits"], found["victims"]) == ("missing-from-collective", str(LATE), WAITING)
    assert found["confidence"] == "certain"
    assert f"rank {LATE} ({host.name}, pid {pid})" in found["summary"]
    assert (found["where"]["function"], Path(found["where"]["file"]).name) == ("load_batch", "straggler.py")
