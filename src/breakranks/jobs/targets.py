"""Where a job is: the target grammar, and which of the jobs there a command is about."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from breakranks.errors import ManyJobsError, NoJobError, ProcessError, UsageError
from breakranks.jobs.find import Found, FoundJob, FoundRank, find_jobs
from breakranks.jobs.unseen import user_name
from breakranks.observe.table import Entry, Table, redact
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Job

EXAMPLES = (
    "A target is: local (the default), pid:4242,4243, a snapshot file such as hang.brk, "
    "or a folder of flight recorder dumps."
)
_LATER = {
    "ssh": "ssh",
    "pdsh": "pdsh",
    "slurm": "Slurm",
    "mpi": "MPI",
    "exec": "your own transport",
}


class Local(NamedTuple):
    """The jobs of this machine."""


class Pids(NamedTuple):
    """These processes, in this order, whatever started them."""

    pids: tuple[int, ...]


class SnapshotFile(NamedTuple):
    """What was seen another time, from a file."""

    path: str


class DumpFolder(NamedTuple):
    """What flight recorders wrote, a file a rank."""

    path: str


Target = Local | Pids | SnapshotFile | DumpFolder


def parse_target(text: str | None) -> Target:
    """Read a target as a person types it; raises :class:`UsageError` with examples.

    >>> parse_target("pid:12,13")
    Pids(pids=(12, 13))
    """
    if text is None or text.strip() in ("", "local"):
        return Local()
    text = text.strip()
    scheme, colon, rest = text.partition(":")
    # A file of that name wins over nothing: schemes are tried first, so that a stray file named
    # "pid:12" cannot take the word's meaning away.
    if colon and scheme == "pid":
        return Pids(_parse_pids(rest))
    if colon and scheme in _LATER:
        raise UsageError(
            f"{text}: reaching jobs through {_LATER[scheme]} comes in a later version",
            "Log in to a host of the job and run breakranks there: breakranks why",
        )
    if os.path.isdir(text):
        return DumpFolder(text)
    if os.path.isfile(text) or text.endswith(".brk") or "/" in text:
        return SnapshotFile(text)
    if text.isdigit():
        raise UsageError(f"{text!r} is not a target", f"For a process, write pid:{text}. {EXAMPLES}")
    raise UsageError(f"{text!r} is neither a target nor a file", EXAMPLES)


def _parse_pids(text: str) -> tuple[int, ...]:
    pids: list[int] = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit()) or not 0 < int(word) <= 2**22:
            raise UsageError(f"{word!r} is not a process id", "Write pids with commas: pid:4242,4243")
        if int(word) not in pids:
            pids.append(int(word))
    return tuple(pids)


def select(found: Found, key: str | None = None) -> FoundJob:
    """The job that a command is about: the one that ``key`` names or starts, or the only one."""
    if key is not None:
        return _select_by_key(found, key)
    if len(found.jobs) == 1:
        return found.jobs[0]
    if not found.jobs:
        raise NoJobError("no job on this machine", _no_job_help(found))
    raise ManyJobsError(
        f"{len(found.jobs)} jobs are here; say which:\n" + jobs_text(found.jobs),
        f"Add --job KEY, for example --job {found.jobs[-1].job.key}",
    )


def _select_by_key(found: Found, key: str) -> FoundJob:
    exact = [job for job in found.jobs if job.job.key == key]
    fitting = exact or [job for job in found.jobs if job.job.key.startswith(key)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ManyJobsError(
            f"{len(fitting)} jobs start with {key!r}:\n" + jobs_text(fitting),
            f"Write more of the key, for example --job {fitting[-1].job.key}",
        )
    if not found.jobs:
        raise NoJobError(f"no job {key!r}: there is no job on this machine", _no_job_help(found))
    raise NoJobError(f"no job {key!r} here; there is:\n" + jobs_text(found.jobs), "Give --job one of these keys.")


def _no_job_help(found: Found) -> str:
    lines = [
        "Looked for Python processes that torchrun, accelerate, deepspeed, Lightning, srun, mpirun, msrun, "
        "Ray or torch.multiprocessing.spawn started, or that have RANK and WORLD_SIZE set.",
        "For any other Python processes, name them: breakranks why pid:4242,4243",
        "A job in a container is seen from inside it, or from its host as root.",
    ]
    for problem in found.problems:
        lines.append(f"Not seen: {problem.what}. {problem.remedy}".rstrip())
    return "\n".join(lines)


def jobs_text(jobs: Sequence[FoundJob]) -> str:
    """A line a job: key, launcher, world, ranks here, since, command."""
    width = max((len(job.job.key) for job in jobs), default=0)
    lines = []
    for job in jobs:
        ranks = RankSet(rank.rank for rank in job.ranks)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.job.started))
        command = " ".join(job.job.command)
        if len(command) > 60:
            command = command[:59] + "…"
        lines.append(
            f"  {job.job.key:<{width}}  {job.job.launcher}, world {job.job.world_size}, "
            f"ranks here {ranks or 'none'}, since {since}, {command}"
        )
    return "\n".join(lines)


def job_of_pids(table: Table, pids: Sequence[int], *, found: Found | None = None) -> FoundJob:
    """A job made of any Python processes.

    They keep their own ranks if all are ranks of one job that was found, and then that job's other ranks
    are not counted as missing; else they are 0, 1, … in the order given.
    """
    if not pids:
        raise UsageError("no process was named", "Write pids with commas: pid:4242,4243")
    entries = [_checked(table, pid) for pid in pids]
    wanted = set(pids)
    for job in (found if found is not None else find_jobs(table)).jobs:
        ranks = tuple(rank for rank in job.ranks if rank.pid in wanted)
        if len(ranks) == len(wanted):
            return FoundJob(job.job, ranks)
    first = entries[0]
    made = Job(
        key=f"pid-{first.pid}",
        launcher="python",
        world_size=len(entries),
        started=min(entry.started for entry in entries),
        command=redact(table.command(first.pid)),
    )
    return FoundJob(made, tuple(FoundRank(rank, entry.pid) for rank, entry in enumerate(entries)))


def _checked(table: Table, pid: int) -> Entry:
    entry = table.get(pid)
    if entry is None:
        raise ProcessError(f"process {pid} is not there", "It has ended, or is in another container. See: ps -ef")
    if entry.state in "ZX":
        raise ProcessError(
            f"process {pid} ({entry.name}) has ended and only its entry is left (a zombie)",
            f"Its parent, pid {entry.ppid}, has not asked how it ended; look at that one.",
        )
    if table.refused(pid):
        user = user_name(entry.uid)
        raise ProcessError(
            f"process {pid} ({entry.name}) belongs to user {user} and is closed to us",
            f"Run it as that user (sudo -u {user} breakranks …) or as root (sudo breakranks …).",
        )
    if not table.is_python(entry, deep=True):
        raise ProcessError(
            f"process {pid} ({entry.name}) is not Python: {' '.join(redact(table.command(pid)))[:80]}",
            _python_below(table, pid) or "Name the Python process that it runs; see: ps -ef --forest",
        )
    return entry


def _python_below(table: Table, pid: int) -> str:
    below = [entry.pid for entry in table.descendants(pid) if table.is_python(entry)]
    return f"It runs Python below it: pid:{','.join(map(str, below[:8]))}" if below else ""
