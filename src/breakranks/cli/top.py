"""Show live what every rank is doing: one line per class of ranks, which of them make progress, and the verdict.

Quit with q or Ctrl-C. Without a terminal, each refresh is printed below the last.
"""

from __future__ import annotations

import argparse
import sys
import time

from breakranks.backend.job_backend import RunningJob
from breakranks.backend.sampling_loop import window_samples
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import FOUND, OK
from breakranks.errors import UsageError
from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.verdict import explain, explain_live
from breakranks.show import top_view
from breakranks.snapshot.model import Snapshot

EXAMPLES = """
breakranks top                 the job on this machine
breakranks top ssh:n[1-4]      the job on these hosts
breakranks top --interval 5    refresh every five seconds
breakranks top --once          print one refresh and exit
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser, files=target_args.SAVED)
    parser.add_argument("--interval", metavar="S", type=float, default=2.0, help="seconds between samples (default: 2)")
    parser.add_argument("--once", action="store_true", help="print one refresh and exit")
    target_args.add_output(parser, json=False, full="print whole paths")


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
        return _status(diagnosis)

    window = window_samples(args.interval)
    with target.sampler(ranks=ranks, keep=window) as sampler:
        sampler.sample()
        started = time.monotonic()

        def take() -> tuple[Snapshot, Diagnosis]:
            # The first refresh needs a second sample, a moment after the first.
            if sampler.sampled == 1:
                time.sleep(max(0.0, min(1.0, args.interval) - (time.monotonic() - started)))
            sampler.sample()
            snapshot = sampler.snapshot(keep=window)
            return snapshot, explain_live(snapshot)

        diagnosis = top_view.watch(
            take,
            stream=sys.stdout,
            look=lambda: terminal_output.look(args),
            interval=args.interval,
            once=args.once,
        )
        return _status(diagnosis)


def _status(diagnosis: Diagnosis) -> int:
    return FOUND if diagnosis.verdict is not None else OK
