"""What every rank is doing: all stacks folded into one tree, with the ranks at each branch.

Ranks that share frames are one branch; where they part, the tree parts. Ranks that should be there and
are not get a line of their own. The main thread of each rank is shown, without the frames of launchers
and wrappers.
"""

from __future__ import annotations

import sys

from breakranks.cli import common
from breakranks.errors import UsageError
from breakranks.rankset import RankSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from breakranks.jobs.find import FoundJob
    from breakranks.reach.head_start import HeadStart
    from breakranks.snapshot.model import Snapshot

EXAMPLES = """
breakranks stacks                       the job on this machine
breakranks stacks --rank 0-3 --threads  every Python thread of four ranks
breakranks stacks --native              C and C++ frames too
breakranks stacks --flat                one block a class, like py-spy
breakranks stacks hang.brk --full       from a file, nothing cut
"""

_PLAIN = frozenset(("local", "--threads", "--native", "--flat", "--json", "--full"))
_VALUED = frozenset(("--job", "--rank", "--color"))


def configure(parser: argparse.ArgumentParser) -> None:
    common.add_target(parser)
    parser.add_argument("--threads", action="store_true", help="every thread by its name, not the main one only")
    parser.add_argument("--native", action="store_true", help="C and C++ frames too (slower)")
    parser.add_argument("--flat", action="store_true", help="one block a class, innermost frame first")
    common.add_output(parser, full="cut nothing: every frame, whole paths")


def head_start(words: list[str]) -> HeadStart | None:
    """Begin to take the stacks of the ranks that these words will turn out to ask for.

    Only for words that are understood for sure; all others are left to the parser, and to its errors.
    """
    options: dict[str, str] = {}
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name in _VALUED:
            options[name] = value if equals else next(left, "")
            if not options[name] or options[name].startswith("-"):
                return None
        elif word not in _PLAIN:
            return None
    if options.get("--color", "auto") not in common.COLORS:
        return None
    try:
        ranks = RankSet.parse(options["--rank"]) if "--rank" in options else None
    except (UsageError, ValueError):
        return None

    from breakranks.reach.head_start import begin

    return begin(options.get("--job"), ranks)


def run(args: argparse.Namespace) -> int:
    from breakranks.snapshot.model import Snapshot

    begun: HeadStart | None = getattr(args, "head_start", None)
    target = common.resolve(args, begun.table if begun else None)
    ranks = common.ranks_of(target, args.rank)
    snapshot = target if isinstance(target, Snapshot) else _look(target, ranks, args.native, begun)
    return _print(snapshot, ranks, args)


def _look(found: FoundJob, ranks: RankSet | None, native: bool, begun: HeadStart | None) -> Snapshot:
    from breakranks.reach.local import Session
    from breakranks.show import tree  # noqa: F401  while the stacks of a head start are still on their way

    with Session(found, ranks=ranks, details=False, head_start=begun) as session:
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
