"""Show which collective the ranks of each group are at, which ranks are behind, and what each has called.

The calls come from torch's flight recorder, in the ranks of a running job or in a folder of dumps. Groups with ranks
that wait are shown in full, the most serious first. Any other group is one line.
"""

from __future__ import annotations

import argparse
import sys

from breakranks.backend.job_backend import RunningJob
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import FOUND, OK
from breakranks.errors import BreakranksError, UsageError
from breakranks.explain.collectives.collective_progress import CollectiveProgress
from breakranks.explain.collectives.group_progress import standings
from breakranks.explain.collectives.root_causes import causes
from breakranks.explain.collectives.wait_ages import is_hang
from breakranks.rankset import ranks_text
from breakranks.show.choose_groups import choose_groups
from breakranks.show.collective_lines import collectives_lines, unread
from breakranks.show.collectives_json import collectives_json
from breakranks.show.json_output import to_text
from breakranks.snapshot.model import Snapshot

EXAMPLES = """
breakranks collectives                      the job on this machine
breakranks collectives slurm:2180718        the job on all hosts of a Slurm job
breakranks collectives dumps/               a folder of flight recorder dumps
breakranks collectives dumps/ --history 8   also the last eight calls of each group, side by side
breakranks collectives --group mesh_tp      groups by name, description or members
breakranks collectives --rank 13            the groups of one rank
breakranks collectives hang.brk --json      a saved snapshot, as JSON
"""
_MAX_CALLS = 100_000


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser)
    parser.add_argument(
        "--group", metavar="NAME", help="show only these groups: a name, a description, or members such as 0-7"
    )
    parser.add_argument(
        "--history", metavar="N", type=int, default=0, help="print the last N calls of each shown group, side by side"
    )
    target_args.add_no_inject(
        parser, "refused for a running job: its recorders can only be read by code inside its ranks"
    )
    target_args.add_output(parser, full="print every group and every rank")


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.history <= _MAX_CALLS:
        raise UsageError(f"--history {args.history} is out of range", f"Give 0 to {_MAX_CALLS:,} calls.")
    with job_selection.rounds(args, patient=True) as targets:
        target = next(targets)
        ranks = job_selection.ranks_of(target, args.rank)
        snapshot = target if isinstance(target, Snapshot) else _read(target, args)

    progress = CollectiveProgress(snapshot)
    if not progress:
        raise _nothing_read(snapshot, args.target if isinstance(target, Snapshot) else None)
    root_causes = causes(progress)
    groups = choose_groups(progress, standings(progress, root_causes), args.group, ranks)
    if args.json:
        sys.stdout.write(to_text(collectives_json(progress, groups, history=args.history, ranks=ranks)))
    else:
        look = terminal_output.look(args)
        whole = args.group is not None
        lines = collectives_lines(progress, groups, look, history=args.history, ranks=ranks, whole=whole)
        terminal_output.show(lines, look)

    return FOUND if is_hang(progress, root_causes) else OK


def _read(job: RunningJob, args: argparse.Namespace) -> Snapshot:
    """Read the recorder of every rank, because which ranks are behind is known only from the calls of the others."""
    if args.no_inject:
        raise UsageError(
            "the collectives of a running job cannot be read from outside its ranks",
            "Omit --no-inject, or give a folder of flight recorder dumps.",
        )
    with job.sampler() as sampler:
        sampler.sample(recorders=True)
        return sampler.snapshot()


def _nothing_read(snapshot: Snapshot, file: str | None) -> BreakranksError:
    reasons = [(f"{ranks_text(ranks)}: {what}", remedy) for ranks, what, remedy in unread(snapshot)]
    if file is not None and not any(problem.recorder_pid for problem in snapshot.problems):
        return BreakranksError(
            f"{file} contains no flight recorder",
            "It was saved with --no-inject, or the job does not use torch. While the job runs: breakranks collectives",
        )
    remedies = dict.fromkeys(remedy for _, remedy in reasons if remedy)
    return BreakranksError(
        "\n".join(["no flight recorder could be read", *(what for what, _ in reasons[:8])]),
        "\n".join(remedies)
        or "torch has one from 2.6 on with gloo and from 2.2 on with NCCL, unless TORCH_FR_BUFFER_SIZE is 0.",
    )
