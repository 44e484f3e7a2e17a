"""Who is at which collective of which group: the front line, who is behind it, and what each has called.

Reads torch's flight recorder, in the ranks of a live job or from a folder of dumps that they wrote. Groups in which
somebody waits stand whole, most troubled first; those in which all is well are a line.
"""

from __future__ import annotations

import argparse
import sys

from breakranks.backend.job_backend import RunningJob
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.errors import BreakranksError, UsageError
from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.progress import CollectiveProgress
from breakranks.explain.collectives.root_causes import STALLED, causes
from breakranks.rankset import RankSet
from breakranks.show.call_names import group_name
from breakranks.show.collective_lines import collectives_lines, is_young, unread
from breakranks.show.collectives_json import collectives_json
from breakranks.show.group_progress import GroupProgress, standings
from breakranks.show.json_output import to_text
from breakranks.show.wording.value_wording import group as group_text
from breakranks.snapshot.model import Snapshot

EXAMPLES = """
breakranks collectives                      the job on this machine
breakranks collectives slurm:2180718        the job on all hosts of a Slurm job
breakranks collectives dumps/               a folder of flight recorder dumps
breakranks collectives dumps/ --history 8   with the last eight calls of each group, side by side
breakranks collectives --group mesh_tp      groups by their name, description or members
breakranks collectives --rank 13            the groups of one rank
breakranks collectives hang.brk --json      for programs
"""
_MAX_CALLS = 100_000


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser)
    parser.add_argument(
        "--group", metavar="NAME", help="only these groups: a name, a description, or members such as 0-7"
    )
    parser.add_argument(
        "--history", metavar="N", type=int, default=0, help="the last N calls of each group that is shown, side by side"
    )
    target_args.add_no_inject(parser)
    target_args.add_output(parser, full="every group and every rank, nothing cut")


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.history <= _MAX_CALLS:
        raise UsageError(f"--history {args.history} is out of range", f"Give 0 to {_MAX_CALLS:,} calls.")
    with job_selection.rounds(args, patient=True) as targets:
        target = next(targets)
        ranks = job_selection.ranks_of(target, args.rank)
        snapshot = target if isinstance(target, Snapshot) else _read(target, args)

    ledger = CollectiveProgress(snapshot)
    if not ledger:
        raise _nothing_read(snapshot, args.target if isinstance(target, Snapshot) else None)
    found = causes(ledger)
    chosen = choose(ledger, standings(ledger, found), args.group, ranks)
    if args.json:
        sys.stdout.write(to_text(collectives_json(ledger, chosen, history=args.history, ranks=ranks)))
    else:
        look = terminal_output.look(args)
        whole = args.group is not None
        lines = collectives_lines(ledger, chosen, look, history=args.history, ranks=ranks, whole=whole)
        terminal_output.show(lines, look)

    return 1 if any(cause.kind != STALLED or cause.victims for cause in found) and not is_young(ledger) else 0


def _read(job: RunningJob, args: argparse.Namespace) -> Snapshot:
    """Every rank's recorder, whichever are asked for: who is behind shows against the others only."""
    if args.no_inject:
        raise UsageError(
            "from outside, nothing can be known of a live job's collectives",
            "Their numbers are inside the ranks. Leave --no-inject out, or give a folder of flight recorder dumps.",
        )
    with job.sampler() as sampler:
        sampler.sample(recorders=True)
        return sampler.snapshot()


def _nothing_read(snapshot: Snapshot, file: str | None) -> BreakranksError:
    known = [(f"ranks {ranks}: {what}", remedy) for ranks, what, remedy in unread(snapshot)]
    if file is not None and not any("recorder of process" in problem.what for problem in snapshot.problems):
        return BreakranksError(
            f"{file} has no flight recorders in it",
            "It was made without getting inside the ranks. While the job lives: breakranks collectives",
        )
    remedies = dict.fromkeys(remedy for _, remedy in known if remedy)
    return BreakranksError(
        "\n".join(["no flight recorder could be read", *(what for what, _ in known[:8])]),
        "\n".join(remedies)
        or "torch has one from 2.6 on with gloo and from 2.2 on with NCCL, unless TORCH_FR_BUFFER_SIZE is 0.",
    )


def choose(
    ledger: CollectiveProgress, found: list[GroupProgress], name: str | None, ranks: RankSet | None
) -> list[GroupProgress]:
    """The groups of ``--group`` and ``--rank``; a name that no group bears is an error that lists those there are."""
    if ranks is not None:
        found = [one for one in found if one.members & ranks]
    if name is None:
        return found
    chosen = [one for one in found if name.strip() in _names(ledger, one)]
    chosen = chosen or _by_members(found, name)
    if not chosen:
        counts: dict[str, int] = {}

        for one in found:
            known = group_name(ledger.group(one.group))
            counts[known] = counts.get(known, 0) + 1
        listed = [f"{known} ({number} groups)" if number > 1 else known for known, number in counts.items()]
        more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
        raise UsageError(
            f"no group is {name!r}", f"There is: {', '.join(listed[:12])}{more}." if listed else "There is none."
        )
    return chosen


def _names(ledger: CollectiveProgress, one: GroupProgress) -> tuple[str, ...]:
    """Every way to name a group, that of `why` included: ``mesh_tp (0-7)``."""
    group = ledger.group(one.group)
    world = ("world", "the world group") if group.description == "default_pg" else ()
    return (group.name, group.description, group_text(call_facts.group_name(ledger, one.group)), *world)


def _by_members(found: list[GroupProgress], text: str) -> list[GroupProgress]:
    try:
        members = RankSet.parse(text)
    except (UsageError, ValueError):
        return []
    return [one for one in found if members and one.members == members]
