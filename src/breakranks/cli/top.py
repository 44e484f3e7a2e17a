"""The live view: one line a class of ranks, what moves and what stands, and the verdict as it forms.

Leave with q or Ctrl-C. Without a terminal each refresh is printed below the last.
"""

from __future__ import annotations

import argparse
import sys
import time

from breakranks.backend.job_backend import RunningJob
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.errors import UsageError
from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.verdict import explain
from breakranks.show import top_view
from breakranks.snapshot.model import Snapshot

EXAMPLES = """
breakranks top                 the job on this machine
breakranks top ssh:n[1-4]      the job on these hosts
breakranks top --interval 5    look every five seconds
breakranks top --once          one look, printed plainly
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser)
    parser.add_argument("--interval", metavar="S", type=float, default=2.0, help="seconds between looks (default: 2)")
    parser.add_argument("--once", action="store_true", help="print one look and leave")
    target_args.add_output(parser, json=False, full="whole paths")


def run(args: argparse.Namespace) -> int:
    if not 0.2 <= args.interval <= 3600:
        raise UsageError(f"--interval {args.interval:g} is out of range", "Give 0.2 to 3600 seconds.")
    with job_selection.rounds(args, patient=args.once) as targets:
        return _show(next(targets), args)


def _show(target: RunningJob | Snapshot, args: argparse.Namespace) -> int:
    job_selection.need_processes(target, args.target)
    ranks = job_selection.ranks_of(target, args.rank)

    if isinstance(target, Snapshot):
        look = terminal_output.look(args)
        diagnosis = explain(target)
        terminal_output.show(top_view.frame_lines(target, diagnosis, look), look)
        return 1 if diagnosis.verdict is not None else 0

    with target.sampler(ranks=ranks, keep=2) as session:
        session.sample()
        started = time.monotonic()

        def take() -> tuple[Snapshot, Diagnosis]:
            # The first frame needs a second sample, a moment after the first.
            if session.sampled == 1:
                time.sleep(max(0.0, min(1.0, args.interval) - (time.monotonic() - started)))
            session.sample()
            snapshot = session.snapshot(keep=2)
            return snapshot, explain(snapshot)

        return top_view.watch(
            take,
            stream=sys.stdout,
            look=lambda: terminal_output.look(args),
            interval=args.interval,
            once=args.once,
        )
