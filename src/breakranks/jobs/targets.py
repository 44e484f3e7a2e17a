"""Targets: the grammar, and the selection of one job."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from breakranks.errors import THIS_BREAKRANKS, ManyJobsError, NoJobError, ProcessError, UsageError
from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
from breakranks.jobs.local_jobs import find_jobs
from breakranks.observe.process_table import ProcessEntry, ProcessTable
from breakranks.observe.redaction import redact
from breakranks.observe.this_host import user_name
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Job
from breakranks.snapshot.process_command import command_line

EXAMPLES = (
    "A target is: local (the default), pid:4242,4243, a snapshot file such as hang.brk, "
    "a folder of flight recorder dumps, or hosts: ssh:n[1-4], pdsh:n[1-4], slurm:2180718, mpi:hostfile, "
    "exec:docker exec -i {host}@c1,c2"
)
# The help for each scheme, if the text after its colon is invalid.
_HOSTS = {
    "ssh": "For example: ssh:n1,n2 or ssh:node-[5,8] or ssh:ann@n[1-4] or, for a ClusterShell group, ssh:@rack1",
    "pdsh": "For example: pdsh:n[1-4], or pdsh: alone for the hosts that pdsh itself is configured with (WCOLL)",
    "slurm": (
        "For example: slurm:2180718, or one step of it: slurm:2180718.0. "
        "slurm: alone is your running job, if you have only one"
    ),
    "mpi": "For example: mpi:hostfile, the host file of mpirun (one host per line)",
    "exec": (
        "For example: exec:docker exec -i {host}@c1,c2 or exec:kubectl exec -i {host} --@worker-[0-3] or, "
        "if it passes the command to a shell, exec:ssh -J gate {host} {command}@n[1-4]"
    ),
}
_COMMAND_CHARACTERS = 60
_SLURM_JOB = re.compile(r"[0-9]{1,18}(?:[_+][0-9]{1,9})?(?:\.(?:[0-9]{1,9}|batch|extern|interactive))?", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


class Local(NamedTuple):
    """The jobs of this machine."""


class Pids(NamedTuple):
    """These processes, in this order, regardless of what started them."""

    pids: tuple[int, ...]


class SnapshotFile(NamedTuple):
    """A snapshot from a file."""

    path: str


class DumpFolder(NamedTuple):
    """A folder of flight recorder dumps, one file per rank."""

    path: str


class Hosts(NamedTuple):
    """Hosts, and how to reach them: ssh, pdsh, slurm, mpi or exec, which has a command template."""

    scheme: str
    where: str
    template: str = ""


Target = Local | Pids | SnapshotFile | DumpFolder | Hosts


def parse_target(text: str | None) -> Target:
    """Parse a target from the command line; raise :class:`UsageError` with examples if it is invalid.

    >>> parse_target("pid:12,13")
    Pids(pids=(12, 13))
    """
    if text is None or text.strip() in ("", "local"):
        return Local()
    text = text.strip()
    scheme, colon, rest = text.partition(":")
    # Schemes are tried before files, so that a stray file named "pid:12" does not change the meaning.
    if colon and scheme == "pid":
        return Pids(_parse_pids(rest))
    if colon and scheme in _HOSTS:
        return _parse_hosts(scheme, rest.strip())
    if os.path.isdir(text):
        return DumpFolder(text)
    if os.path.isfile(text) or text.endswith(".brk") or "/" in text:
        return SnapshotFile(text)
    if text.isdigit():
        raise UsageError(f"{text!r} is not a target", f"For a process, write pid:{text}. {EXAMPLES}")
    raise UsageError(f"{text!r} is neither a target nor a file", EXAMPLES)


def _parse_hosts(scheme: str, rest: str) -> Hosts:
    help = _HOSTS[scheme]
    if _UNPRINTABLE.search(rest):
        raise UsageError(f"{scheme}: contains a line break or another control character", help)
    if not rest and scheme not in ("pdsh", "slurm"):
        raise UsageError(f"{scheme}: has nothing after the colon", help)
    if scheme == "exec":
        return _parse_exec(rest)
    if scheme == "slurm" and rest and not _SLURM_JOB.fullmatch(rest):
        raise UsageError(f"{rest[:80]!r} is not a Slurm job", help)
    return Hosts(scheme, rest)


def _parse_exec(rest: str) -> Hosts:
    """Parse ``TEMPLATE@hosts``. They are separated by the last ``@`` that does not start a group in the hosts."""
    help = _HOSTS["exec"]
    at = rest.rfind("@")
    while at > 0 and rest[at - 1] in "@,!&^":
        at = rest.rfind("@", 0, at)
    template, where = rest[: max(at, 0)].strip(), rest[at + 1 :].strip()
    if not template or not where:
        raise UsageError(f"exec:{rest[:80]} has no {'command' if at >= 0 and where else '@hosts at its end'}", help)
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise UsageError(f"exec:{template[:80]}: {error}", help) from error
    if not words or not words[0] or "{" in words[0]:
        raise UsageError(f"exec:{template[:80]} does not begin with a program", help)
    if "{command}" in template and "{host}" not in template:
        raise UsageError(f"exec:{template[:80]} has {{command}} but no {{host}}", help)
    return Hosts("exec", where, template)


def _parse_pids(text: str) -> tuple[int, ...]:
    pids: list[int] = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit()) or not 0 < int(word) <= 2**22:
            raise UsageError(f"{word!r} is not a process id", "Separate pids by commas: pid:4242,4243")
        if int(word) not in pids:
            pids.append(int(word))
    return tuple(pids)


class SelectedRanks(Protocol):
    """A job that can be selected by its key: of this host, or of many."""

    @property
    def job(self) -> Job: ...

    @property
    def ranks(self) -> Sequence[FoundRank]: ...


AnyJob = TypeVar("AnyJob", bound=SelectedRanks)


def select(found: LocalJobs, key: str | None = None) -> FoundJob:
    """Return the job that has this key or a key with this prefix, or the only job; raise an error otherwise."""
    if not found.jobs:
        wanted = f"no job {key!r}: " if key is not None else ""
        raise NoJobError(f"{wanted}no job was found on this machine", _no_job_help(found))
    return select_of(found.jobs, key)


def select_of(jobs: Sequence[AnyJob], key: str | None, where: str = "here") -> AnyJob:
    """Return the selected job of one or more jobs, as ``select`` does. ``where`` is a word for messages."""
    if key is not None:
        return _select_by_key(jobs, key, where)
    if len(jobs) == 1:
        return jobs[0]
    raise ManyJobsError(
        f"{len(jobs)} jobs {where}; select one:\n" + jobs_text(jobs),
        f"Add --job KEY, for example --job {jobs[-1].job.key}",
    )


def _select_by_key(jobs: Sequence[AnyJob], key: str, where: str) -> AnyJob:
    exact = [job for job in jobs if job.job.key == key]
    fitting = exact or [job for job in jobs if job.job.key.startswith(key)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ManyJobsError(
            f"{len(fitting)} jobs start with {key!r}:\n" + jobs_text(fitting),
            f"Write more of the key, for example --job {fitting[-1].job.key}",
        )
    raise NoJobError(f"no job {key!r} {where}; found:\n" + jobs_text(jobs), "Pass one of these keys to --job.")


def _no_job_help(found: LocalJobs) -> str:
    lines = [
        "breakranks finds Python processes started by torchrun, accelerate, deepspeed, Lightning, srun, mpirun, "
        "msrun, Ray or torch.multiprocessing.spawn, and those that have RANK and WORLD_SIZE set.",
        "For any other Python processes, name them: breakranks why pid:4242,4243",
        "A job in a container is visible from inside it, or from its host as root.",
    ]
    for problem in found.problems:
        lines.append(f"Not seen: {problem.what}. {problem.remedy}".rstrip())
    return "\n".join(lines)


def jobs_text(jobs: Sequence[SelectedRanks]) -> str:
    """One line per job: key, launcher, world, ranks here, start, command."""
    width = max((len(job.job.key) for job in jobs), default=0)
    lines = []
    for job in jobs:
        ranks = RankSet(rank.rank for rank in job.ranks)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.job.started))
        command = command_line(job.job.command, _COMMAND_CHARACTERS)
        lines.append(
            f"  {job.job.key:<{width}}  {job.job.launcher}, world {job.job.world_size}, "
            f"ranks here {ranks or 'none'}, since {since}, {command}"
        )
    return "\n".join(lines)


def job_of_pids(table: ProcessTable, pids: Sequence[int], *, found: LocalJobs | None = None) -> FoundJob:
    """Make a job of any Python processes.

    If all are ranks of one found job, they keep their numbers, and the other ranks of that job do not count as missing.
    Otherwise they are numbered 0, 1, … in the given order.
    """
    if not pids:
        raise UsageError("no process is named", "Separate pids by commas: pid:4242,4243")
    entries = [_checked(table, pid) for pid in pids]
    wanted = set(pids)
    for job in (found if found is not None else find_jobs(table)).jobs:
        ranks = tuple(rank for rank in job.ranks if rank.pid in wanted)
        if len(ranks) == len(wanted):
            return FoundJob(job.job, ranks)
    first = entries[0]
    made_job = Job(
        key=f"pid-{first.pid}",
        launcher="python",
        world_size=len(entries),
        started=min(entry.started for entry in entries),
        command=redact(table.command(first.pid)),
    )
    ranks = tuple(FoundRank(rank, entry.pid) for rank, entry in enumerate(entries))
    return FoundJob(made_job, ranks, of_pids=True)


def _checked(table: ProcessTable, pid: int) -> ProcessEntry:
    entry = table.get(pid)
    if entry is None:
        raise ProcessError(f"no process {pid}", "It has ended, or runs in another container. See: ps -ef")
    if entry.state in "ZX":
        raise ProcessError(
            f"process {pid} ({entry.name}) has exited and is not reaped yet (zombie)",
            f"Its parent, pid {entry.ppid}, has not waited for it. Inspect the parent.",
        )
    if table.refused(pid):
        user = user_name(entry.uid)
        raise ProcessError(
            f"permission denied: process {pid} ({entry.name}) belongs to user {user}",
            f"Run as that user (sudo -u {user} {THIS_BREAKRANKS} …) or as root (sudo {THIS_BREAKRANKS} …).",
        )
    if not table.is_python(entry, deep=True):
        raise ProcessError(
            f"process {pid} ({entry.name}) is not Python: {' '.join(redact(table.command(pid)))[:80]}",
            _python_below(table, pid) or "Name a Python process that it started. See: ps -ef --forest",
        )
    return entry


def _python_below(table: ProcessTable, pid: int) -> str:
    below = [entry.pid for entry in table.descendants(pid) if table.is_python(entry)]
    return f"It has Python descendants: pid:{','.join(map(str, below[:8]))}" if below else ""
