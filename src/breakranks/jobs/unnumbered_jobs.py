"""Jobs whose ranks have no number in their environment: ``torch.multiprocessing.spawn`` and Ray."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from breakranks.jobs.found_jobs import FoundJob, FoundRank, StackOf
from breakranks.jobs.launchers import RAY, SPAWN, is_agent, is_spawned, launcher_of
from breakranks.jobs.unreadable_processes import pids_text
from breakranks.observe.process_table import ProcessEntry, ProcessTable
from breakranks.observe.redaction import redact
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Job, Missing, Problem

# Names that torch gives to a data loader's processes, since 2.6.
_DATA_WORKERS = ("pt_data_worker", "pt_data_pin")


def spawn_jobs(
    table: ProcessTable, taken: Collection[int], stack_of: StackOf | None, suspects: Collection[int] = ()
) -> tuple[list[FoundJob], list[Problem]]:
    """Find jobs of ``torch.multiprocessing.spawn``, by the stacks of the children if those can be read.

    ``taken`` are the ranks of other jobs, whose children do not count. But the ``suspects`` among them may not be
    ranks: srun may have started one program per node, which spawned the real ranks.
    """
    jobs: list[FoundJob] = []
    problems: list[Problem] = []
    for parent, children in _families(table, taken, suspects if stack_of else ()).items():
        settled = _numbers(children, stack_of)
        numbers = settled.numbers
        if parent not in taken and settled.refused and _looks_like_it(table, parent, children):
            numbers = dict(enumerate(child.pid for child in children))
            problems.append(
                Problem(
                    f"ranks of the job under pid {parent} are numbered by start time: their stacks cannot be read",
                    "Run breakranks as root or with CAP_SYS_PTRACE, so that it can read their stacks.",
                )
            )
        if numbers:
            world = _world(stack_of(parent)) if stack_of and not settled.refused else 0
            jobs.append(_spawn_job(table, parent, numbers, max(world, max(numbers) + 1), settled.starting))
    return jobs, problems


def _families(table: ProcessTable, taken: Collection[int], suspects: Collection[int]) -> dict[int, list[ProcessEntry]]:
    """Python processes outside any job, and suspects, with those children that may be ranks."""
    inside = {child.pid for pid in taken for child in table.descendants(pid)} | {table.own_pid, *taken}
    found: dict[int, list[ProcessEntry]] = {}
    for parent in table:
        suspect = parent.pid in suspects
        if (parent.pid in inside and not suspect) or not table.is_python(parent):
            continue
        children = [
            child
            for child in table.children(parent.pid)
            if (suspect or child.pid not in inside) and _may_be_rank(table, child, forked=not suspect)
        ]
        if children and not is_agent(table.command(parent.pid)):
            found[parent.pid] = children
    # A rank may spawn data workers of its own. Only the topmost family counts.
    return {
        pid: children
        for pid, children in found.items()
        if not any(ancestor.pid in found for ancestor in table.ancestors(pid))
    }


def _may_be_rank(table: ProcessTable, child: ProcessEntry, *, forked: bool) -> bool:
    if child.state in "ZX" or not table.is_python(child) or child.name in _DATA_WORKERS:
        return False
    if not child.forked:
        return is_spawned(table.command(child.pid))
    # start_processes(start_method="fork"), as in notebooks. Only programs that have loaded torch are inspected. The
    # parent has the same memory map as its children, and is read once for all of them.
    return forked and table.maps(child.ppid, "/libtorch")


class _Settled(NamedTuple):
    """Pids by rank, children that do not have a rank yet, and whether stacks could not be read."""

    numbers: dict[int, int]
    starting: list[int]
    refused: bool


def _numbers(children: Sequence[ProcessEntry], stack_of: StackOf | None) -> _Settled:
    numbers: dict[int, int] = {}
    starting: list[int] = []
    if stack_of is None:
        return _Settled({}, [], True)
    for child in children:
        threads = stack_of(child.pid)
        if not threads:
            return _Settled({}, [], True)
        number = _wrapped_index(threads)
        if number is not None:
            numbers.setdefault(number, child.pid)
        elif child.forked and not numbers:
            return _Settled({}, [], False)  # a plain pool of workers, which has no ranks
        else:
            starting.append(child.pid)
    return _Settled(numbers, starting, False)


def _wrapped_index(threads: Sequence[Mapping[str, Any]]) -> int | None:
    for frame in _frames(threads):
        if frame.get("name") == "_wrap" and _filename(frame).endswith("torch/multiprocessing/spawn.py"):
            return _local(frame, "i")
    return None


def _world(threads: Sequence[Mapping[str, Any]] | None) -> int:
    """The number of processes that the parent started, including those that have ended since."""
    for frame in _frames(threads or ()):
        if _filename(frame).endswith("torch/multiprocessing/spawn.py"):
            count = _local(frame, "nprocs")
            if count is not None:
                return count
    return 0


def _frames(threads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [frame for thread in threads for frame in thread.get("frames") or ()]


def _filename(frame: Mapping[str, Any]) -> str:
    return str(frame.get("filename") or "")


def _local(frame: Mapping[str, Any], name: str) -> int | None:
    for local in frame.get("locals") or ():
        if local.get("name") == name:
            text = str(local.get("repr") or "")
            return int(text) if text.isdigit() else None
    return None


def _looks_like_it(table: ProcessTable, parent: int, children: Sequence[ProcessEntry]) -> bool:
    """Whether, without stacks, these look like ranks: several, spawned at once, by a program that uses torch."""
    starts = [child.started for child in children]
    return (
        len(children) > 1
        and all(is_spawned(table.command(child.pid)) for child in children)
        and max(starts) - min(starts) < 10
        and table.maps(parent, "/libtorch")
    )


def _spawn_job(
    table: ProcessTable, parent: int, numbers: Mapping[int, int], world: int, starting: list[int]
) -> FoundJob:
    launcher = table.entries[parent]
    gone = str(RankSet(range(world)) - RankSet(numbers))
    missing: tuple[Missing, ...] = ()
    if gone and starting:
        detail = f"still starting, without a rank number yet: pid {pids_text(starting)}"
        missing = (Missing(ranks=gone, reason="absent", detail=detail),)
    elif gone:
        missing = (Missing(ranks=gone, reason="exited", detail=f"the parent (pid {parent}) is still running"),)
    job = Job(
        key=f"{SPAWN.name}-{parent}",
        launcher=SPAWN.name,
        world_size=world,
        started=launcher.started,
        command=redact(table.command(parent)),
        launcher_pid=parent,
    )
    return FoundJob(job, tuple(FoundRank(n, numbers[n], n) for n in sorted(numbers)), missing)


def ray_jobs(table: ProcessTable) -> tuple[list[FoundJob], list[Problem]]:
    """Find Ray actors, by class. Ray does not publish their ranks, so they are numbered by start time."""
    actors: dict[tuple[int, str], list[ProcessEntry]] = {}
    for entry in table:
        # The kernel's name has only the start of the title; the command line has all of it.
        if not entry.name.startswith("ray::") or entry.name.startswith("ray::IDLE"):
            continue
        title = (table.command(entry.pid) or (entry.name,))[0]
        parent = table.get(entry.ppid)
        if parent is not None and launcher_of(table.command(parent.pid), parent.name) is RAY:
            name = title.removeprefix("ray::").split(".")[0].split(" ")[0].split("(")[0]
            actors.setdefault((parent.pid, name), []).append(entry)
    jobs = []
    for (raylet, name), workers in actors.items():
        workers.sort(key=lambda entry: (entry.ticks, entry.pid))
        job = Job(
            key=f"{RAY.name}-{name}",
            launcher=RAY.name,
            world_size=len(workers),
            started=workers[0].started,
            command=(f"ray::{name}",),
            launcher_pid=raylet,
        )
        jobs.append(FoundJob(job, tuple(FoundRank(n, w.pid) for n, w in enumerate(workers))))
    if not jobs:
        return [], []
    return jobs, [
        Problem(
            "Ray does not publish the rank of a worker; its workers are numbered by start time",
            "Set RANK and WORLD_SIZE in the runtime_env of the actors.",
        )
    ]
