"""What every rank is doing: all stacks folded into one tree, with the ranks at each branch.

Ranks that share frames are one branch; where they part, the tree parts. Ranks that should be there and
are not get a line of their own. The main thread of each rank is shown, without the frames of launchers
and wrappers.
"""

from __future__ import annotations

import sys

from breakranks.cli import common
from breakranks.snapshot.model import Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from breakranks.jobs.find import FoundJob
    from breakranks.rankset import RankSet

EXAMPLES = """
breakranks stacks                       the job on this machine
breakranks stacks --rank 0-3 --threads  every Python thread of four ranks
breakranks stacks --native              C and C++ frames too
breakranks stacks --flat                one block a class, like py-spy
breakranks stacks hang.brk --full       from a file, nothing cut
"""


def configure(parser: argparse.ArgumentParser) -> None:
    common.add_target(parser)
    parser.add_argument("--threads", action="store_true", help="every thread by its name, not the main one only")
    parser.add_argument("--native", action="store_true", help="C and C++ frames too (slower)")
    parser.add_argument("--flat", action="store_true", help="one block a class, innermost frame first")
    common.add_output(parser, full="cut nothing: every frame, whole paths")


def run(args: argparse.Namespace) -> int:
    target = common.resolve(args)
    ranks = common.ranks_of(target, args.rank)
    snapshot = target if isinstance(target, Snapshot) else _look(target, ranks, args.native)
    return _print(snapshot, ranks, args)


def _look(found: FoundJob, ranks: RankSet | None, native: bool) -> Snapshot:
    from breakranks.reach.local import Session

    with Session(found, ranks=ranks, details=False) as session:
        session.sample(native=native)
        return session.snapshot()


def _print(snapshot: Snapshot, ranks: RankSet | None, args: argparse.Namespace) -> int:
    if args.json:
        from breakranks.show.json import stacks_json, to_text

        options = {"threads": args.threads, "native": args.native, "full": args.full}
        sys.stdout.write(to_text(stacks_json(snapshot, ranks=ranks, **options)))
    else:
        from breakranks.show.tree import stacks_lines

        look = common.look(args)
        common.show(
            stacks_lines(snapshot, look, ranks=ranks, threads=args.threads, native=args.native, flat=args.flat),
            look,
        )
    return 0 if _seen(snapshot) else 2


def _seen(snapshot: Snapshot) -> bool:
    """Whether any stack was read; the lines say why not."""
    return len(snapshot.stacks) > 1
