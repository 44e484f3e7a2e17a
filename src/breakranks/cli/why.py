"""Why a job hangs: which rank broke ranks, where it is, what it waits for, and what to do.

Looks twice at every rank, half a second apart, and longer where another look could change the answer: a
rank that is merely slow, a sleep that ends soon. A healthy job gets no verdict.
"""

from __future__ import annotations

import argparse
import sys

from msgspec.structs import replace

from breakranks.backend.job_backend import RunningJob
from breakranks.backend.sampling_loop import sample_until_conclusive
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.progress_line import ProgressLine
from breakranks.errors import UsageError
from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.frame_meanings import FrameTable, from_toml
from breakranks.explain.verdict import explain
from breakranks.rankset import RankSet
from breakranks.show.json_output import to_text, why_json
from breakranks.show.stack_tree import of_dumps
from breakranks.show.verdict_lines import why_lines
from breakranks.snapshot.model import Snapshot, only
from breakranks.snapshot.snapshot_file import save

EXAMPLES = """
breakranks why                        the job on this machine
breakranks why --job torchrun-29500   this one of several
breakranks why pid:4242,4243          any Python processes
breakranks why ssh:node-[5,8]         the job on these hosts
breakranks why slurm:2180718          the job on all hosts of a Slurm job
breakranks why --save hang.brk        keep what was seen
breakranks why hang.brk               explain it later, anywhere
breakranks why dumps/                 a folder of flight recorder dumps
breakranks why --json | jq .verdict   for programs
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser)
    parser.add_argument("--save", metavar="FILE", help="keep what was seen in a snapshot file")
    parser.add_argument(
        "--interval", metavar="S", type=float, default=0.5, help="seconds between samples (default: 0.5)"
    )
    parser.add_argument(
        "--patience",
        metavar="S",
        type=float,
        default=15.0,
        help="the longest to watch a job that may only be slow (default: 15)",
    )
    parser.add_argument("--no-native", action="store_true", help="without C frames: quicker, knows less")
    target_args.add_no_inject(parser)
    parser.add_argument("--meanings", metavar="FILE", help="a TOML file of what frames of your own code mean")
    target_args.add_output(parser, full="whole stacks and paths")


def run(args: argparse.Namespace) -> int:
    for name, value in (("--interval", args.interval), ("--patience", args.patience)):
        if not 0 <= value <= 3600:
            raise UsageError(f"{name} {value:g} is out of range", "Give 0 to 3600 seconds.")
    table = meanings(args.meanings)
    status = 2
    with job_selection.rounds(args, patient=args.json or bool(args.save)) as targets:
        for target in targets:
            status = _explain(target, table, args)
    return status


def _explain(target: RunningJob | Snapshot, table: FrameTable, args: argparse.Namespace) -> int:
    ranks = job_selection.ranks_of(target, args.rank)
    if isinstance(target, Snapshot) and of_dumps(target):
        # Who has not come shows against the others only: all are explained, and those asked for are shown.
        snapshot, diagnosis = target, about(explain(target, table), ranks)
    elif isinstance(target, Snapshot):
        snapshot = only(target, ranks)
        diagnosis = explain(snapshot, table)
    else:
        progress = ProgressLine()
        snapshot, diagnosis = sample_until_conclusive(
            target.sampler(ranks=ranks),
            native=not args.no_native,
            interval=args.interval,
            patience=args.patience,
            table=table,
            inject=not args.no_inject,
            progress=progress.watching,
        )
        progress.done()
    if args.save:
        save(snapshot, args.save)
    if args.json:
        sys.stdout.write(to_text(why_json(snapshot, diagnosis)))
    else:
        how = terminal_output.look(args)
        terminal_output.show(why_lines(snapshot, diagnosis, how), how)
    if diagnosis.verdict is not None:
        return 1
    return 0 if len(snapshot.stacks) > 1 or snapshot.groups else 2  # 2: not one stack could be read; the lines say why


def about(diagnosis: Diagnosis, ranks: RankSet | None) -> Diagnosis:
    """The part of a diagnosis that has to do with these ranks."""
    if ranks is None:
        return diagnosis

    found = [one for one in diagnosis.findings if (RankSet.parse(one.culprits) | RankSet.parse(one.victims)) & ranks]
    verdict = next((one for one in found if not one.informational), None)
    classes = [one for one in diagnosis.classes if RankSet.parse(one.ranks) & ranks]
    return replace(diagnosis, verdict=verdict, findings=tuple(found), classes=tuple(classes))


def meanings(path: str | None) -> FrameTable:
    """The table of meanings, with the user's own rows if there are any."""
    if path is None:
        return FrameTable()
    if sys.version_info < (3, 11):
        raise UsageError("--meanings needs Python 3.11 or newer", "Run breakranks with a newer Python.")
    import tomllib

    try:
        with open(path, "rb") as file:
            return FrameTable(from_toml(tomllib.load(file)))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", "See docs/why.md for an example.") from None
