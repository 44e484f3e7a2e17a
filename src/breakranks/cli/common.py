"""What commands share: the target, its options, and turning both into a job or a snapshot.

Imports what it needs when it needs it: most of the time until the first stack is import time.
"""

from __future__ import annotations

import sys
import time

from breakranks.errors import NoJobError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from breakranks.jobs.find import Found, FoundJob
    from breakranks.rankset import RankSet
    from breakranks.reach.head_start import HeadStart
    from breakranks.show.style import Line, Look
    from breakranks.snapshot.model import Missing, Snapshot

COLORS = ("auto", "always", "never")
_STACK_DEADLINE = 5.0


def add_target(parser: argparse.ArgumentParser) -> None:
    """TARGET, ``--job`` and ``--rank``: what to look at."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="local (the default), pid:123,124, a file made with `breakranks snapshot`, or a folder of dumps",
    )
    parser.add_argument("--job", metavar="KEY", help="which job, when there are several: its key or the start of it")
    parser.add_argument("--rank", metavar="SET", help="only these ranks: 3, 0-7, 0,4-6, 0-31/8")


def add_output(parser: argparse.ArgumentParser, *, json: bool = True, full: str = "") -> None:
    """``--json``, ``--full`` and ``--color``: how to say it."""
    if json:
        parser.add_argument("--json", action="store_true", help="the same as JSON, for programs")
    if full:
        parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument(
        "--color",
        metavar="WHEN",
        choices=COLORS,
        default="auto",
        help="auto (the default: on a terminal, unless NO_COLOR is set), always, never",
    )


def add_no_inject(parser: argparse.ArgumentParser) -> None:
    """``--no-inject``: stay outside of the processes."""
    parser.add_argument(
        "--no-inject",
        action="store_true",
        help="run nothing inside the ranks: then calls by number, groups, owners of locks and steps are not known",
    )


def find(begun: HeadStart | None = None) -> Found:
    """Every job of this machine."""
    from breakranks.jobs.find import find_jobs
    from breakranks.observe.table import read_table

    if begun is None:
        return find_jobs(read_table(), stack_of=stack_of)

    def stack_of_settled(pid: int) -> Sequence[Mapping[str, Any]] | None:
        begun.stacks()  # nobody can be looked at twice at a time
        return stack_of(pid)

    return find_jobs(begun.table(), stack_of=stack_of_settled)


def resolve(args: argparse.Namespace) -> FoundJob | Snapshot:
    """The one job that a command is about, here or in a file."""
    from breakranks.jobs.targets import DumpFolder, Pids, SnapshotFile, job_of_pids, parse_target, select

    target = parse_target(args.target)
    if isinstance(target, DumpFolder):
        from breakranks.reach.dumps import load as load_dumps

        return load_dumps(target.path)
    if isinstance(target, SnapshotFile):
        return load(target.path, args.job)
    if isinstance(target, Pids):
        from breakranks.jobs.find import find_jobs
        from breakranks.observe.table import read_table

        table = read_table()
        found = find_jobs(table, stack_of=stack_of)
        return job_of_pids(table, target.pids, found=found)
    return select(find(getattr(args, "head_start", None)), args.job)


def resolve_live(args: argparse.Namespace) -> FoundJob:
    """The one job that a command is about; it must run here."""
    from breakranks.jobs.targets import Pids, parse_target
    from breakranks.snapshot.model import Snapshot

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
    from breakranks.snapshot.file import load as load_file

    snapshot = load_file(path)
    if key is not None and not snapshot.job.key.startswith(key):
        raise NoJobError(f"{path} is not of job {key!r}", f"It is of {snapshot.job.key}; leave --job out.")
    return snapshot


def chosen_ranks(text: str | None, here: Iterable[int], missing: Sequence[Missing] = ()) -> RankSet | None:
    """The ranks of ``--rank``, or None for all; a rank that this job does not have is an error."""
    if text is None or text == "all":
        return None
    from breakranks.rankset import RankSet, ranks_text

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


def ranks_of(target: FoundJob | Snapshot, text: str | None) -> RankSet | None:
    """``--rank`` checked against the job that it is about."""
    return chosen_ranks(text, (rank.rank for rank in target.ranks), target.missing)


def need_processes(target: FoundJob | Snapshot, name: str | None) -> None:
    """Refuse what has no processes in it: a folder of dumps, or a snapshot that was made of one."""
    from breakranks.show.tree import of_dumps
    from breakranks.snapshot.model import Snapshot

    if isinstance(target, Snapshot) and of_dumps(target):
        raise UsageError(
            f"{name} has flight recorder dumps in it, and no processes",
            f"Ask what they say: breakranks why {name}, or breakranks collectives {name}",
        )


def look(args: argparse.Namespace) -> Look:
    """How standard output wants to be written to."""
    from breakranks.show.style import look_of

    return look_of(sys.stdout, args.color, full=getattr(args, "full", False), now=time.time())


def show(lines: Iterable[Line], how: Look) -> None:
    """Write lines to standard output."""
    from breakranks.show.style import render

    sys.stdout.write(render(lines, how))


def stack_of(pid: int) -> Sequence[Mapping[str, Any]] | None:
    """One process's threads as py-spy gives them: how ``torch.multiprocessing.spawn`` numbers its ranks
    is written nowhere else."""
    import subprocess

    import msgspec

    from breakranks.observe.stacks import py_spy
    from breakranks.observe.watchdog import Watchdog

    with Watchdog() as dog:
        dog.guard(pid)
        try:
            done = subprocess.run(
                [py_spy(), "dump", "--json", "--locals", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_STACK_DEADLINE,
                check=False,
            )
            threads: list[dict[str, Any]] = msgspec.json.decode(done.stdout or b"[]")
        except (subprocess.TimeoutExpired, OSError, msgspec.MsgspecError):
            return None
    return threads
