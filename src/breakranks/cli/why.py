"""Explain why a job hangs: which rank the others wait for, where it is, what it waits for, and what to do.

Every rank is sampled twice, half a second apart, and more often while another sample could change the answer: when a
rank may only be slow, or a sleep ends soon. A healthy job gets no verdict.
"""

from __future__ import annotations

import argparse
import sys

from breakranks.backend.job_backend import RunningJob
from breakranks.backend.sampling_loop import INTERVAL_SECONDS, PATIENCE_SECONDS, sample_until_conclusive
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import FAILED, FOUND, OK
from breakranks.cli.progress_line import ProgressLine
from breakranks.errors import UsageError
from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.explain_ranks import explain_ranks
from breakranks.explain.frame_meanings import FrameTable
from breakranks.explain.meanings_file import read_meanings
from breakranks.show.json_output import to_text, why_json
from breakranks.show.verdict_lines import why_lines
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.snapshot_file import save

EXAMPLES = """
breakranks why                        the job on this machine
breakranks why --job torchrun-29500   one of several jobs
breakranks why pid:4242,4243          any Python processes
breakranks why ssh:node-[5,8]         the job on these hosts
breakranks why slurm:2180718          the job on all hosts of a Slurm job
breakranks why --save hang.brk        also save the samples to a file
breakranks why hang.brk               explain a saved snapshot, on any machine
breakranks why dumps/                 a folder of flight recorder dumps
breakranks why --json | jq .verdict   the verdict as JSON
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser)
    parser.add_argument("--save", metavar="FILE", help="also save the samples to a snapshot file")
    parser.add_argument(
        "--interval",
        metavar="S",
        type=float,
        default=INTERVAL_SECONDS,
        help=f"seconds between samples (default: {INTERVAL_SECONDS:g})",
    )
    parser.add_argument(
        "--patience",
        metavar="S",
        type=float,
        default=PATIENCE_SECONDS,
        help=f"maximum seconds to watch a job that may only be slow (default: {PATIENCE_SECONDS:g})",
    )
    parser.add_argument("--no-native", action="store_true", help="do not read C frames: faster, with less evidence")
    target_args.add_no_inject(parser)
    parser.add_argument("--meanings", metavar="FILE", help="TOML file with the meanings of frames of your own code")
    target_args.add_output(parser, full="print whole stacks and paths")


def run(args: argparse.Namespace) -> int:
    for name, value in (("--interval", args.interval), ("--patience", args.patience)):
        if not 0 <= value <= 3600:
            raise UsageError(f"{name} {value:g} is out of range", "Give 0 to 3600 seconds.")
    table = read_meanings(args.meanings)
    status = FAILED
    with job_selection.rounds(args, patient=args.json or bool(args.save)) as targets:
        for target in targets:
            snapshot, diagnosis = _explained(target, table, args)
            if args.save:
                save(snapshot, args.save)
            _show(snapshot, diagnosis, args)
            status = _status(snapshot, diagnosis)
    return status


def _explained(
    target: RunningJob | Snapshot, table: FrameTable, args: argparse.Namespace
) -> tuple[Snapshot, Diagnosis]:
    ranks = job_selection.ranks_of(target, args.rank)
    if isinstance(target, Snapshot):
        return explain_ranks(target, ranks, table)
    progress = ProgressLine()
    result = sample_until_conclusive(
        target.sampler(ranks=ranks),
        native=not args.no_native,
        interval=args.interval,
        patience=args.patience,
        table=table,
        inject=not args.no_inject,
        progress=progress.watching,
    )
    progress.done()
    return result


def _show(snapshot: Snapshot, diagnosis: Diagnosis, args: argparse.Namespace) -> None:
    if args.json:
        sys.stdout.write(to_text(why_json(snapshot, diagnosis)))
    else:
        look = terminal_output.look(args)
        terminal_output.show(why_lines(snapshot, diagnosis, look), look)


def _status(snapshot: Snapshot, diagnosis: Diagnosis) -> int:
    """Return the exit status. It is 2 if no stack could be read; the printed lines tell why."""
    if diagnosis.verdict is not None:
        return FOUND
    return OK if snapshot.has_stacks or snapshot.groups else FAILED
