"""Keep what can be seen of a job in one file: stacks, process states, files, sockets, locks.

Two samples are taken, the second with C frames, and more where `why` would look longer: so `why`, `stacks` and
`ps` answer from the file as they would have here, on another machine, another day. Secrets in command lines are
removed; environment variables are not kept.
"""

from __future__ import annotations

import argparse
import os

from breakranks.backend.job_backend import RunningJob
from breakranks.backend.sampling_loop import sample_until_conclusive
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.progress_line import ProgressLine
from breakranks.errors import UsageError
from breakranks.rankset import RankSet, ranks_text
from breakranks.show.quantities import amount, plural
from breakranks.show.terminal_text import Line
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.snapshot_file import check_place, save

EXAMPLES = """
breakranks snapshot -o hang.brk          the job on this machine
breakranks snapshot pid:4242 -o one.brk  any Python process
breakranks snapshot slurm:2180718        all hosts of a Slurm job, in one file
breakranks snapshot dumps/ -o hang.brk   a folder of flight recorder dumps, as one file
breakranks why hang.brk                  explain it later, anywhere
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write (default: KEY.brk)")
    parser.add_argument(
        "--interval", metavar="S", type=float, default=0.5, help="seconds between samples (default: 0.5)"
    )
    parser.add_argument("--no-native", action="store_true", help="without C frames: quicker")
    target_args.add_no_inject(parser)
    target_args.add_output(parser, json=False)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.interval <= 3600:
        raise UsageError(f"--interval {args.interval:g} is out of range", "Give 0 to 3600 seconds.")
    with job_selection.rounds(args, patient=True) as targets:
        return _keep(next(targets), args)


def _keep(target: RunningJob | Snapshot, args: argparse.Namespace) -> int:
    if isinstance(target, Snapshot) and not os.path.isdir(args.target):
        raise UsageError(f"{args.target} is a snapshot already", f"Read it: breakranks why {args.target}")
    if isinstance(target, Snapshot) and args.rank is not None:
        raise UsageError(
            f"{args.target} is kept whole", "Who is behind shows against the others only. Leave --rank out."
        )
    ranks = job_selection.ranks_of(target, args.rank)

    path = args.output or f"{file_name(target.job.key)}.brk"
    check_place(path)
    if isinstance(target, Snapshot):
        snapshot = target  # a folder of dumps
    else:
        progress = ProgressLine()
        snapshot, _ = sample_until_conclusive(
            target.sampler(ranks=ranks),
            native=not args.no_native,
            interval=args.interval,
            inject=not args.no_inject,
            progress=progress.watching,
        )
        progress.done()
    size = save(snapshot, path)
    look = terminal_output.look(args)
    terminal_output.show(kept_lines(snapshot, path, size), look)
    return 0


def file_name(key: str) -> str:
    """A job's key as the name of a file."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in key).lstrip(".") or "job"


def kept_lines(snapshot: Snapshot, path: str, size: int) -> list[Line]:
    """What is in the file now, and what is not."""
    ranks = RankSet(rank.rank for rank in snapshot.ranks)
    stacks = plural(len(snapshot.stacks) - 1, "different stack")
    samples = max((len(rank.process.samples) for rank in snapshot.ranks), default=0)
    recorders = sum(1 for rank in snapshot.ranks if rank.recorder is not None)
    what = [] if not samples else [plural(samples, "sample")]
    what += [] if not recorders else [plural(recorders, "flight recorder")]
    lines: list[Line] = [
        (
            f"kept {ranks_text(ranks)} of job {snapshot.job.key}: {', '.join([*what, stacks, amount(size)])} in ",
            (path, "bold"),
        )
    ]
    for missing in snapshot.missing:
        lines.append((f"not in it: {ranks_text(RankSet.parse(missing.ranks))}, {missing.reason}",))
    lines.append(("explain it anywhere: ", (f"breakranks why {path}", "bold")))
    return lines
