"""What every rank is doing: all stacks folded into one tree, with the ranks at each branch.

Ranks that share frames are one branch; where they part, the tree parts. Ranks that should be there and
are not get a line of their own. The main thread of each rank is shown, without the frames of launchers
and wrappers.
"""

from __future__ import annotations

import argparse
import sys

from msgspec.structs import replace

from breakranks.backend.job_backend import RunningJob
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.errors import UsageError
from breakranks.rankset import RankSet
from breakranks.show.json_output import stacks_json, to_text
from breakranks.show.stack_tree import of_dumps, stacks_lines
from breakranks.snapshot.model import Problem, Sample, Snapshot, Thread

EXAMPLES = """
breakranks stacks                       the job on this machine
breakranks stacks ssh:node-[5,8]        the job on these hosts
breakranks stacks --rank 0-3 --threads  every Python thread of four ranks
breakranks stacks --native              C and C++ frames too
breakranks stacks --inside              and at which step each rank is
breakranks stacks --flat                one block a class, like py-spy
breakranks stacks hang.brk --full       from a file, nothing cut
breakranks stacks dumps/                where each rank made its newest call, from a folder of dumps
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser)
    parser.add_argument("--threads", action="store_true", help="every thread by its name, not the main one only")
    parser.add_argument("--native", action="store_true", help="C and C++ frames too (slower)")
    parser.add_argument(
        "--inside", action="store_true", help="ask every rank at which step it is, not only those that wait for a lock"
    )
    target_args.add_no_inject(parser)
    parser.add_argument("--flat", action="store_true", help="one block a class, innermost frame first")
    target_args.add_output(parser, full="cut nothing: every frame, whole paths")


def run(args: argparse.Namespace) -> int:
    if args.inside and args.no_inject:
        raise UsageError("--inside and --no-inject exclude each other", "Leave one of them out.")
    status = 2
    with job_selection.rounds(args, patient=args.json) as targets:
        for target in targets:
            ranks = job_selection.ranks_of(target, args.rank)
            snapshot = _recorded(target, args.target) if isinstance(target, Snapshot) else _look(target, ranks, args)
            status = _print(snapshot, ranks, args)
    return status


def _recorded(snapshot: Snapshot, name: str | None) -> Snapshot:
    """A snapshot as it is; one of dumps with the stack in which each rank made its newest call."""
    if not of_dumps(snapshot):
        return snapshot

    ranks = []
    for rank in snapshot.ranks:
        assert rank.recorder is not None
        calls = [track.last for track in rank.recorder.tracks if track.last is not None]
        calls += [one.entry for one in rank.recorder.transfers]
        row = max(calls, key=lambda call: call.record).stack if calls else 0
        # Without a sample a rank stands nowhere, and is in no class.
        samples = (
            (Sample(time=snapshot.time, state="?", threads=(Thread(tid=0, name="MainThread", stack=row),)),)
            if row
            else ()
        )
        ranks.append(replace(rank, process=replace(rank.process, samples=samples)))
    if not any(rank.process.samples for rank in ranks):
        raise UsageError(
            f"the dumps in {name} have no stacks in them",
            f"Their calls say much: breakranks why {name}, or breakranks collectives {name}",
        )
    note = Problem("where the ranks are now. The stacks are those of each rank's newest recorded call.")
    return replace(snapshot, ranks=tuple(ranks), problems=(note, *snapshot.problems))


def _look(job: RunningJob, ranks: RankSet | None, args: argparse.Namespace) -> Snapshot:
    visit = "" if args.no_inject else "all" if args.inside else "some"
    with job.sampler(ranks=ranks, details=False) as sampler:
        sampler.sample(native=args.native, visit=visit)
        return sampler.snapshot()


def _print(snapshot: Snapshot, ranks: RankSet | None, args: argparse.Namespace) -> int:
    if args.json:
        options = {"threads": args.threads, "native": args.native, "full": args.full}
        sys.stdout.write(to_text(stacks_json(snapshot, ranks=ranks, **options)))
    else:
        look = terminal_output.look(args)
        terminal_output.show(
            stacks_lines(snapshot, look, ranks=ranks, threads=args.threads, native=args.native, flat=args.flat),
            look,
        )
    return 0 if _seen(snapshot) else 2


def _seen(snapshot: Snapshot) -> bool:
    """Whether any stack was read; the lines say why not."""
    return len(snapshot.stacks) > 1
