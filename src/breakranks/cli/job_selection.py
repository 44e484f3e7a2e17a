"""From the target and its options to the one job, or the snapshot, that a command is about.

``hosts`` is imported only for a target of hosts: it takes as long as to look at four ranks of this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from breakranks.backend.job_backend import Backend, RunningJob
from breakranks.backend.local_backend import LocalBackend
from breakranks.cli.target_args import DEADLINE_SECONDS, reach_words
from breakranks.errors import NoJobError, UsageError
from breakranks.jobs.targets import DumpFolder, Hosts, Local, Pids, SnapshotFile, parse_target
from breakranks.rankset import RankSet, ranks_text
from breakranks.show.stack_tree import of_dumps
from breakranks.snapshot.model import Missing, Snapshot
from breakranks.snapshot.snapshot_file import load as load_file

Target = Local | Pids | Hosts | SnapshotFile | DumpFolder


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Backend | Snapshot]:
    """Where the jobs of the target run, until the command ends; or what the target's file has."""
    target = parse_target(args.target)
    if isinstance(target, DumpFolder | SnapshotFile):
        yield _loaded(target, args.job)
        return
    backend = backend_of(target, args)
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def rounds(args: argparse.Namespace, *, patient: bool = False) -> Iterator[Iterator[RunningJob | Snapshot]]:
    """The one job that a command is about, here, on hosts or in a file.

    A job on hosts comes a second time, where some of them answered late. ``patient``: once, with all of them.
    """
    with opened(args) as target:
        if isinstance(target, Snapshot):
            yield iter((target,))
        else:
            yield target.rounds(args.job, patient=patient)


@contextmanager
def live(args: argparse.Namespace) -> Iterator[tuple[Backend, RunningJob]]:
    """The one job that a command is about, which must run, and where it does."""
    with live_backend(args) as backend:
        job = backend.job(args.job)
        if not job.ranks:
            raise NoJobError("none of the job's ranks is here", "See: breakranks ps")
        yield backend, job


@contextmanager
def live_backend(args: argparse.Namespace, what: str = "this needs a job that runs") -> Iterator[Backend]:
    """Where jobs run: the target must not be a file."""
    if isinstance(parse_target(args.target), DumpFolder | SnapshotFile):
        raise UsageError(
            f"{what}, and {args.target} is none", "Leave the target out, or name its processes: pid:123,124"
        )
    with opened(args) as backend:
        assert not isinstance(backend, Snapshot)
        yield backend


def backend_of(target: Local | Pids | Hosts, args: argparse.Namespace) -> Backend:
    if isinstance(target, Local):
        return LocalBackend()
    if isinstance(target, Pids):
        return LocalBackend(target)
    args.deadline = DEADLINE_SECONDS if args.deadline is None else args.deadline
    if not 0.1 <= args.deadline <= 3600:
        raise UsageError(f"--deadline {args.deadline:g} is out of range", "Give 0.1 to 3600 seconds.")
    from breakranks.cli.host_notices import TerminalNotices
    from breakranks.hosts.hosts_backend import HostsBackend, ReachOptions
    from breakranks.hosts.transports import TransportOptions

    options = ReachOptions(
        words=(args.target, *reach_words(args)),
        transport=TransportOptions(
            ssh_config=args.ssh_config,
            ssh_options=args.ssh_options,
            python=args.python,
            setup=args.setup,
            sudo=bool(args.sudo),
            deadline=args.deadline,
        ),
        native=getattr(args, "native", False) or not getattr(args, "no_native", True),
    )
    return HostsBackend(target, options, TerminalNotices(args))


def _loaded(target: DumpFolder | SnapshotFile, key: str | None) -> Snapshot:
    if isinstance(target, SnapshotFile):
        return load(target.path, key)
    from breakranks.observe.dump_snapshot import load as load_dumps

    return load_dumps(target.path)


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


def ranks_of(target: RunningJob | Snapshot, text: str | None) -> RankSet | None:
    """``--rank`` checked against the job that it is about."""
    return chosen_ranks(text, (rank.rank for rank in target.ranks), target.missing)


def need_processes(target: RunningJob | Snapshot, name: str | None) -> None:
    """Refuse what has no processes in it: a folder of dumps, or a snapshot that was made of one."""
    if isinstance(target, Snapshot) and of_dumps(target):
        raise UsageError(
            f"{name} has flight recorder dumps in it, and no processes",
            f"Ask what they say: breakranks why {name}, or breakranks collectives {name}",
        )
