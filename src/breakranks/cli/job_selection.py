"""From the target and its options to the one job, or the snapshot, that a command is about.

``hosts`` is imported only for a target of hosts: the import takes as long as sampling four ranks of this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from breakranks.backend.job_backend import Backend, RunningJob
from breakranks.backend.local_backend import LocalBackend
from breakranks.cli import terminal_output
from breakranks.cli.target_args import DEADLINE_SECONDS, reach_words
from breakranks.errors import NoJobError, UsageError
from breakranks.jobs.rank_selection import selected_ranks
from breakranks.jobs.targets import DumpFolder, Hosts, Local, Pids, SnapshotFile, parse_target
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.model import Snapshot

if TYPE_CHECKING:
    from breakranks.hosts.hosts_backend import HostsBackend


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Backend | Snapshot]:
    """Yield the backend of a live target, which is closed at the end, or the snapshot of a recorded one."""
    target = parse_target(args.target)
    if isinstance(target, DumpFolder | SnapshotFile):
        from breakranks.backend.recorded_job import (
            load_recorded,  # msgspec takes 10 ms, and a live job needs none of it
        )

        yield load_recorded(target, args.job)
        return
    backend = backend_of(target, args)
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def rounds(args: argparse.Namespace, *, patient: bool = False) -> Iterator[Iterator[RunningJob | Snapshot]]:
    """Yield the one job that a command is about, running or recorded.

    A job on hosts comes a second time if some of its hosts answered late. ``patient``: once, with all hosts.
    """
    with opened(args) as target:
        if isinstance(target, Snapshot):
            yield iter((target,))
        else:
            yield target.rounds(args.job, patient=patient)


@contextmanager
def live(args: argparse.Namespace) -> Iterator[tuple[Backend, RunningJob]]:
    """Yield the one running job that a command is about, and its backend."""
    with live_backend(args) as backend:
        job = backend.job(args.job)
        if not job.ranks:
            raise NoJobError("the job has no rank here", "See: breakranks ps")
        yield backend, job


@contextmanager
def live_backend(args: argparse.Namespace, needs: str = "this command needs a running job") -> Iterator[Backend]:
    """Yield the backend of a target; raise UsageError if the target is recorded. ``needs`` begins the message."""
    if isinstance(parse_target(args.target), DumpFolder | SnapshotFile):
        raise UsageError(f"{needs}, which {args.target} is not", "Omit the target, or name the processes: pid:123,124")
    with opened(args) as backend:
        assert not isinstance(backend, Snapshot)
        yield backend


def backend_of(target: Local | Pids | Hosts, args: argparse.Namespace) -> Backend:
    """Return the backend for a target that is not recorded."""
    if isinstance(target, Hosts):
        return hosts_backend(target, args)
    return LocalBackend() if isinstance(target, Local) else LocalBackend(target)


def hosts_backend(target: Hosts, args: argparse.Namespace) -> HostsBackend:
    """Return the backend for a target of hosts, with the options of ``target_args.add_reach``."""
    deadline = DEADLINE_SECONDS if args.deadline is None else args.deadline
    if not 0.1 <= deadline <= 3600:
        raise UsageError(f"--deadline {deadline:g} is out of range", "Give 0.1 to 3600 seconds.")
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
            deadline=deadline,
        ),
        native=getattr(args, "native", False) or not getattr(args, "no_native", True),
    )
    return HostsBackend(target, options, TerminalNotices(lambda: terminal_output.look(args)))


def ranks_of(target: RunningJob | Snapshot, text: str | None) -> RankSet | None:
    """Return the ranks of ``--rank``, checked against the job; None for all of them."""
    return selected_ranks(text, (rank.rank for rank in target.ranks), target.missing)


def living_ranks_of(job: RunningJob, text: str | None) -> RankSet | None:
    """Return the ranks of ``--rank``, each of which must have a process; None for all of them."""
    ranks = ranks_of(job, text)
    gone = (ranks or RankSet()) - RankSet(rank.rank for rank in job.ranks)
    if gone:
        here = RankSet(rank.rank for rank in job.ranks)
        raise UsageError(
            f"no process of {ranks_text(gone)} was found",
            f"Ranks with a process: {here or 'none'}. To list them: breakranks ps",
        )
    return ranks


def need_processes(target: RunningJob | Snapshot, name: str | None) -> None:
    """Raise UsageError for a target without processes: a folder of dumps, or a snapshot that was made of one."""
    if isinstance(target, Snapshot) and target.of_dumps:
        raise UsageError(
            f"{name} contains flight recorder dumps, and no processes",
            f"Explain the dumps: breakranks why {name}, or breakranks collectives {name}",
        )
