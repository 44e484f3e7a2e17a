"""Save the evidence of a job to one file: stacks, process states, files, sockets, locks.

Two samples are taken, the second with C frames, and more if `why` would take more. `why`, `stacks` and `ps` then give
the same answer from the file, on any machine, at any time. Secrets in command lines are removed; environment variables
are not saved.
"""

from __future__ import annotations

import argparse
import os

from breakranks.backend.job_backend import RunningJob
from breakranks.backend.sampling_loop import sample_until_conclusive
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import OK
from breakranks.cli.progress_line import ProgressLine
from breakranks.errors import UsageError
from breakranks.rankset import RankSet
from breakranks.show.saved_lines import saved_lines
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.snapshot_file import check_place, save

EXAMPLES = """
breakranks snapshot -o hang.brk          the job on this machine
breakranks snapshot pid:4242 -o one.brk  any Python process
breakranks snapshot slurm:2180718        all hosts of a Slurm job, in one file
breakranks snapshot dumps/ -o hang.brk   a folder of flight recorder dumps, as one file
breakranks why hang.brk                  explain it later, on any machine
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser, files=target_args.DUMPS)
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write (default: KEY.brk)")
    parser.add_argument(
        "--interval", metavar="S", type=float, default=0.5, help="seconds between samples (default: 0.5)"
    )
    parser.add_argument("--no-native", action="store_true", help="do not read C frames: faster, with less evidence")
    target_args.add_no_inject(parser)
    target_args.add_output(parser, json=False)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.interval <= 3600:
        raise UsageError(f"--interval {args.interval:g} is out of range", "Give 0 to 3600 seconds.")
    with job_selection.rounds(args, patient=True) as targets:
        target = next(targets)
        if isinstance(target, Snapshot):
            _check_recorded(args)
        ranks = job_selection.ranks_of(target, args.rank)
        path = args.output or f"{_file_name(target.job.key)}.brk"
        check_place(path)
        snapshot = target if isinstance(target, Snapshot) else _sampled(target, ranks, args)
        size = save(snapshot, path)
        look = terminal_output.look(args)
        terminal_output.show(saved_lines(snapshot, path, size), look)
        return OK


def _check_recorded(args: argparse.Namespace) -> None:
    """Raise UsageError unless the target is a whole folder of dumps."""
    if not os.path.isdir(args.target):
        raise UsageError(f"{args.target} is already a snapshot", f"Explain it: breakranks why {args.target}")
    if args.rank is not None:
        raise UsageError(
            f"{args.target} can only be saved whole",
            "Which ranks are behind is known only from the calls of the others. Omit --rank.",
        )


def _sampled(job: RunningJob, ranks: RankSet | None, args: argparse.Namespace) -> Snapshot:
    progress = ProgressLine()
    snapshot, _ = sample_until_conclusive(
        job.sampler(ranks=ranks),
        native=not args.no_native,
        interval=args.interval,
        inject=not args.no_inject,
        progress=progress.watching,
    )
    progress.done()
    return snapshot


def _file_name(key: str) -> str:
    """Return the key of a job as the name of a file."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in key).lstrip(".") or "job"
