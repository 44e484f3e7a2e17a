"""Show what every rank is doing: all stacks folded into one tree, with the ranks at each branch.

Ranks with the same frames share a branch. The tree has the main thread of each rank, without the frames of launchers
and wrappers. Missing ranks have a line of their own.
"""

from __future__ import annotations

import argparse
import sys

from breakranks.backend.job_backend import RunningJob
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import FAILED, OK
from breakranks.errors import UsageError
from breakranks.rankset import RankSet
from breakranks.show.stack_tree import stacks_lines
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.newest_calls import with_newest_calls

EXAMPLES = """
breakranks stacks                       the job on this machine
breakranks stacks ssh:node-[5,8]        the job on these hosts
breakranks stacks --rank 0-3 --threads  every Python thread of four ranks
breakranks stacks --native              also C and C++ frames
breakranks stacks --inside              also the step of each rank
breakranks stacks --flat                one block per stack, like py-spy
breakranks stacks hang.brk --full       a saved snapshot, with nothing cut
breakranks stacks dumps/                the newest call of each rank, from a folder of dumps
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser)
    parser.add_argument("--threads", action="store_true", help="print every thread by name, not only the main thread")
    parser.add_argument("--native", action="store_true", help="print C and C++ frames too (slower)")
    parser.add_argument(
        "--inside",
        action="store_true",
        help="run code in every rank to read its step and locks, not only in ranks that wait for a lock or for data",
    )
    target_args.add_no_inject(parser)
    parser.add_argument("--flat", action="store_true", help="print one block per stack, innermost frame first")
    target_args.add_output(parser, full="print every frame and whole paths")


def run(args: argparse.Namespace) -> int:
    if args.inside and args.no_inject:
        raise UsageError("--inside and --no-inject exclude each other", "Omit one of them.")
    status = FAILED
    with job_selection.rounds(args, patient=args.json) as targets:
        for target in targets:
            ranks = job_selection.ranks_of(target, args.rank)
            snapshot = _recorded(target, args.target) if isinstance(target, Snapshot) else _sampled(target, ranks, args)
            _show(snapshot, ranks, args)
            status = OK if snapshot.has_stacks else FAILED  # without a stack, the printed lines tell why
    return status


def _recorded(snapshot: Snapshot, name: str | None) -> Snapshot:
    return with_newest_calls(snapshot, name) if snapshot.of_dumps else snapshot


def _sampled(job: RunningJob, ranks: RankSet | None, args: argparse.Namespace) -> Snapshot:
    visit = "" if args.no_inject else "all" if args.inside else "some"
    with job.sampler(ranks=ranks, details=False) as sampler:
        sampler.sample(native=args.native, visit=visit)
        return sampler.snapshot()


def _show(snapshot: Snapshot, ranks: RankSet | None, args: argparse.Namespace) -> None:
    if args.json:
        from breakranks.show.json_output import stacks_json, to_text  # 20 ms, for what findings are made of

        options = {"threads": args.threads, "native": args.native, "full": args.full}
        sys.stdout.write(to_text(stacks_json(snapshot, ranks=ranks, **options)))
    else:
        look = terminal_output.look(args)
        terminal_output.show(
            stacks_lines(snapshot, look, ranks=ranks, threads=args.threads, native=args.native, flat=args.flat),
            look,
        )
