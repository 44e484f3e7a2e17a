"""From the target and its options to the one job, or the snapshot, that a command is about.

``hosts`` is imported only for a target of hosts: it takes as long as to look at four ranks of this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from breakranks.backend.sampler import Sampler
from breakranks.cli.target_args import DEADLINE_SECONDS
from breakranks.errors import NoJobError, UsageError
from breakranks.jobs.found_jobs import FoundJob, LocalJobs
from breakranks.jobs.local_jobs import find_jobs
from breakranks.jobs.merge_jobs import ClusterJob
from breakranks.jobs.targets import DumpFolder, Hosts, Pids, SnapshotFile, job_of_pids, parse_target, select
from breakranks.observe.process_table import read_table
from breakranks.observe.pyspy_parse import threads_of
from breakranks.rankset import RankSet, ranks_text
from breakranks.show.stack_tree import of_dumps
from breakranks.snapshot.model import Missing, Snapshot
from breakranks.snapshot.snapshot_file import load as load_file

if TYPE_CHECKING:
    from breakranks.cli.hosts_target import HostsTarget
    from breakranks.hosts.hosts_sampler import HostsSampler


def find() -> LocalJobs:
    """Every job of this machine."""
    return find_jobs(read_table(), stack_of=threads_of)


def reach(args: argparse.Namespace) -> HostsTarget | None:
    """The hosts of the target, if it is of hosts; they are left when the command ends."""
    target = parse_target(args.target)
    if not isinstance(target, Hosts):
        return None
    args.deadline = DEADLINE_SECONDS if args.deadline is None else args.deadline
    if not 0.1 <= args.deadline <= 3600:
        raise UsageError(f"--deadline {args.deadline:g} is out of range", "Give 0.1 to 3600 seconds.")
    from breakranks.cli.hosts_target import HostsTarget

    hosts_target = args.hosts_target = HostsTarget(target, args)
    return hosts_target


def rounds(args: argparse.Namespace, *, patient: bool = False) -> Iterator[FoundJob | ClusterJob | Snapshot]:
    """The one job that a command is about, here, on hosts or in a file.

    A job on hosts comes a second time, where some of them answered late. ``patient``: once, with all of them.
    """
    hosts_target = reach(args)
    if hosts_target is None:
        yield resolve(args)
    else:
        yield from hosts_target.rounds(args.job, patient=patient)


def session(
    target: FoundJob | ClusterJob, args: argparse.Namespace, *, ranks: RankSet | None = None, keep: int = 0
) -> Sampler | HostsSampler:
    """A look at a job with all details, wherever it is."""
    if isinstance(target, FoundJob):
        return Sampler(target, ranks=ranks)
    from breakranks.hosts.hosts_sampler import HostsSampler

    return HostsSampler(args.hosts_target.controller, target, ranks=ranks, keep=keep)


def resolve(args: argparse.Namespace) -> FoundJob | Snapshot:
    """The one job that a command is about, here or in a file."""
    target = parse_target(args.target)
    if isinstance(target, DumpFolder):
        from breakranks.observe.dump_snapshot import load as load_dumps

        return load_dumps(target.path)
    if isinstance(target, SnapshotFile):
        return load(target.path, args.job)
    if isinstance(target, Pids):
        table = read_table()
        found = find_jobs(table, stack_of=threads_of)
        return job_of_pids(table, target.pids, found=found)
    return select(find(), args.job)


def resolve_live(args: argparse.Namespace) -> FoundJob | ClusterJob:
    """The one job that a command is about; it must run."""
    hosts_target = reach(args)
    if hosts_target is not None:
        hosts_target.meet(patient=True)
        return hosts_target.job(args.job)
    if args.target is not None and args.target != "local" and not isinstance(parse_target(args.target), Pids):
        raise UsageError(
            f"this needs a job that runs, and {args.target} is none",
            "Leave the target out, or name its processes: pid:123,124",
        )
    job = resolve(args)
    assert not isinstance(job, Snapshot)
    if not job.ranks:
        raise NoJobError("none of the job's ranks is here", "See: breakranks ps")
    return job


def load(path: str, key: str | None) -> Snapshot:
    """A snapshot from a file, if it is of the job that was asked for."""
    snapshot = load_file(path)
    if key is not None and not snapshot.job.key.startswith(key):
        raise NoJobError(f"{path} is not of job {key!r}", f"It is of {snapshot.job.key}; leave --job out.")
    return snapshot


def chosen_ranks(text: str | None, here: Iterable[int], missing: Sequence[Missing] = ()) -> RankSet | None:
    """The ranks of ``--rank``, or None for all; a rank that this job does not have is an error."""
    if text is None or text == "all":
        return None

    try:
        asked = RankSet.parse(text)
    except ValueError as error:  # a number of thousands of digits
        raise UsageError("--rank has a number that is no rank", "Write ranks folded: 0-7,12.") from error
    if not asked:
        raise UsageError("--rank names no rank", "Write ranks folded: 3, 0-7, 0,4-6.")
    present = RankSet(here)
    gone = RankSet()
    for one in missing:
        gone |= RankSet.parse(one.ranks)
    unknown = asked - present - gone
    if unknown:
        also = f" Missing: {gone}." if gone else ""
        verb = "is" if len(unknown) == 1 else "are"
        raise UsageError(
            f"{ranks_text(unknown)} {verb} not in this job",
            f"There {'is' if len(present) == 1 else 'are'} {ranks_text(present)}.{also}"
            if present
            else f"None of its ranks is here.{also}",
        )
    return asked


def ranks_of(target: FoundJob | ClusterJob | Snapshot, text: str | None) -> RankSet | None:
    """``--rank`` checked against the job that it is about."""
    return chosen_ranks(text, (rank.rank for rank in target.ranks), target.missing)


def need_processes(target: FoundJob | ClusterJob | Snapshot, name: str | None) -> None:
    """Refuse what has no processes in it: a folder of dumps, or a snapshot that was made of one."""
    if isinstance(target, Snapshot) and of_dumps(target):
        raise UsageError(
            f"{name} has flight recorder dumps in it, and no processes",
            f"Ask what they say: breakranks why {name}, or breakranks collectives {name}",
        )
