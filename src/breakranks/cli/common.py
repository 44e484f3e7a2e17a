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
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from breakranks.cli.reaching import Reaching
    from breakranks.jobs.across import ClusterJob
    from breakranks.jobs.find import Found, FoundJob
    from breakranks.rankset import RankSet
    from breakranks.reach.cluster import ClusterSession
    from breakranks.reach.head_start import HeadStart
    from breakranks.reach.local import Session
    from breakranks.show.style import Line, Look
    from breakranks.snapshot.model import Missing, Snapshot

DEADLINE = 10.0
COLORS = ("auto", "always", "never")
LIVE = (
    "local (the default), pid:123,124, or hosts: ssh:n[1-4], pdsh:n[1-4], slurm:JOBID, mpi:HOSTFILE, exec:COMMAND@HOSTS"
)


def add_target(parser: argparse.ArgumentParser) -> None:
    """TARGET, ``--job`` and ``--rank``: what to look at."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help=f"{LIVE}; a file made with `breakranks snapshot`, or a folder of dumps",
    )
    parser.add_argument("--job", metavar="KEY", help="which job, when there are several: its key or the start of it")
    parser.add_argument("--rank", "--ranks", dest="rank", metavar="SET", help="only these ranks: 3, 0-7, 0,4-6, 0-31/8")
    add_reach(parser)


def add_reach(parser: argparse.ArgumentParser) -> None:
    """How the hosts of a target are reached. Defaults: the environment and a file, see ``cli.defaults``."""
    parser.add_argument("--ssh-config", metavar="FILE", help="for ssh, pdsh and mpirun: read this file, as ssh -F does")
    parser.add_argument("--ssh-options", metavar="TEXT", help="more options for ssh: '-p 2222 -i key'")
    parser.add_argument("--python", metavar="PATH", help="the Python to use on the hosts (default: one that is there)")
    parser.add_argument("--setup", metavar="TEXT", help="run this in a shell there first: 'conda activate x'")
    parser.add_argument("--sudo", action="store_true", help="look as root there, by sudo -n")
    parser.add_argument("--deadline", metavar="S", type=float, help="seconds that a host has to answer (default: 10)")


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
    from breakranks.observe.stacks import threads_of
    from breakranks.observe.table import read_table

    if begun is None:
        return find_jobs(read_table(), stack_of=threads_of)

    def stack_of_settled(pid: int) -> Sequence[Mapping[str, Any]] | None:
        begun.stacks()  # nobody can be looked at twice at a time
        return threads_of(pid)

    return find_jobs(begun.table(), stack_of=stack_of_settled)


def reach(args: argparse.Namespace) -> Reaching | None:
    """The hosts of the target, if it is of hosts; they are left when the command ends."""
    from breakranks.jobs.targets import Hosts, parse_target

    target = parse_target(args.target)
    if not isinstance(target, Hosts):
        return None
    args.deadline = DEADLINE if args.deadline is None else args.deadline
    if not 0.1 <= args.deadline <= 3600:
        raise UsageError(f"--deadline {args.deadline:g} is out of range", "Give 0.1 to 3600 seconds.")
    from breakranks.cli.reaching import Reaching

    reaching = args.reaching = Reaching(target, args)
    return reaching


def reach_words(args: argparse.Namespace) -> list[str]:
    """The options of :func:`add_reach` as they were given, for another command."""
    words = ["--sudo"] if args.sudo else []
    for name in ("ssh_config", "ssh_options", "python", "setup", "deadline"):
        value = getattr(args, name)
        if value is not None and (name, value) != ("deadline", DEADLINE):
            words.append(f"--{name.replace('_', '-')}={value}")
    return words


def rounds(args: argparse.Namespace, *, patient: bool = False) -> Iterator[FoundJob | ClusterJob | Snapshot]:
    """The one job that a command is about, here, on hosts or in a file.

    A job on hosts comes a second time, where some of them answered late. ``patient``: once, with all of them.
    """
    reaching = reach(args)
    if reaching is None:
        yield resolve(args)
    else:
        yield from reaching.rounds(args.job, patient=patient)


def session(
    target: FoundJob | ClusterJob, args: argparse.Namespace, *, ranks: RankSet | None = None, keep: int = 0
) -> Session | ClusterSession:
    """A look at a job with all details, wherever it is."""
    from breakranks.jobs.find import FoundJob

    if isinstance(target, FoundJob):
        from breakranks.reach.local import Session

        return Session(target, ranks=ranks)
    from breakranks.reach.cluster import ClusterSession

    return ClusterSession(args.reaching.fleet, target, ranks=ranks, keep=keep)


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
        from breakranks.observe.stacks import threads_of
        from breakranks.observe.table import read_table

        table = read_table()
        found = find_jobs(table, stack_of=threads_of)
        return job_of_pids(table, target.pids, found=found)
    return select(find(getattr(args, "head_start", None)), args.job)


def resolve_live(args: argparse.Namespace) -> FoundJob | ClusterJob:
    """The one job that a command is about; it must run."""
    from breakranks.jobs.targets import Pids, parse_target
    from breakranks.snapshot.model import Snapshot

    reaching = reach(args)
    if reaching is not None:
        reaching.meet(patient=True)
        return reaching.job(args.job)
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


def ranks_of(target: FoundJob | ClusterJob | Snapshot, text: str | None) -> RankSet | None:
    """``--rank`` checked against the job that it is about."""
    return chosen_ranks(text, (rank.rank for rank in target.ranks), target.missing)


def need_processes(target: FoundJob | ClusterJob | Snapshot, name: str | None) -> None:
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
