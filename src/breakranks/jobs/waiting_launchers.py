"""Launchers that have not started any rank: torchrun waits for the other hosts before it starts its own."""

from __future__ import annotations

import re
from collections.abc import Collection

from breakranks.jobs.found_jobs import FoundJob
from breakranks.jobs.launchers import launcher_of
from breakranks.observe.process_table import ProcessEntry, ProcessTable
from breakranks.observe.redaction import redact
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Job, Missing

# Only these wait before they start ranks. The others start them at once, or end.
_WAITERS = ("torchrun", "accelerate")
_NODE = re.compile(r"--(?:node[-_]rank|machine[-_]rank)(?:=|\s)\d+")
_OPTIONS = {
    "nodes": re.compile(r"--(?:nnodes|num_machines)(?:=|\s)(\d+)"),
    "each": re.compile(r"--(?:nproc[-_]per[-_]node|nproc[-_]per[-_]machine)(?:=|\s)(\d+)"),
    "all": re.compile(r"--num_processes(?:=|\s)(\d+)"),
}


def starting_jobs(table: ProcessTable, ranks: Collection[int]) -> list[FoundJob]:
    """Return a job without ranks for each launcher that has no ranks among its descendants."""
    busy = {ancestor.pid for pid in ranks for ancestor in table.ancestors(pid)}
    # One job may have two agents on one machine. If the ranks of one have ended, that is not a new job.
    known = {_without_node(table.command(pid)) for pid in busy}
    found = []
    for entry in table:
        if not table.is_python(entry):
            continue
        command = table.command(entry.pid)
        if entry.pid in busy or not _waits(table, entry) or _without_node(command) in known:
            continue
        row = launcher_of(command, entry.name)
        assert row is not None
        world = world_size(command)
        detail = "the launcher has not started any rank yet"
        missing = (Missing(ranks=str(RankSet.span(0, world)), reason="absent", detail=detail, not_started=True),)
        job = Job(
            key=f"{row.name}-{entry.pid}",
            launcher=row.name,
            world_size=world,
            started=entry.started,
            command=redact(command),
            launcher_pid=entry.pid,
        )
        found.append(FoundJob(job, (), missing if world else ()))
    return found


def _waits(table: ProcessTable, entry: ProcessEntry) -> bool:
    if entry.state in "ZX" or entry.forked:
        return False
    row = launcher_of(table.command(entry.pid), entry.name)
    if row is None or row.name not in _WAITERS:
        return False
    # accelerate starts torchrun, a shell starts accelerate: the innermost one is the launcher.
    return not any(table.is_python(child) for child in table.descendants(entry.pid))


def _without_node(command: tuple[str, ...]) -> str:
    return _NODE.sub("", " ".join(command))


def world_size(command: tuple[str, ...]) -> int:
    """The number of ranks that the command line of a launcher asks for; 0 if it does not contain it.

    >>> world_size(("torchrun", "--nnodes=2", "--nproc-per-node", "4", "train.py"))
    8
    """
    text = " ".join(command)
    numbers = {name: int(match[1]) for name, option in _OPTIONS.items() if (match := option.search(text))}
    if "all" in numbers:
        return numbers["all"]
    return numbers.get("nodes", 1) * numbers.get("each", 1) if numbers else 0
