"""How a group, a call and a long set of ranks are written where there is little room."""

from __future__ import annotations

from collections.abc import Sequence

from breakranks.explain.collectives.progress import CollectiveProgress
from breakranks.rankset import RankSet, short_text
from breakranks.show.terminal_text import Piece, TerminalStyle
from breakranks.snapshot.recorder_tables import Group

_SET_WIDTH = 28
_SIZES_WIDTH = 40
_NAME_WIDTH = 40
WORLD = "the world group"


def group_name(group: Group) -> str:
    """``mesh_tp``, ``the world group``, or ``group 7`` for one that has no description."""
    if group.description == "default_pg":
        return WORLD
    return group.description if group.description not in ("", "undefined") else f"group {group.name}"


def short_name(ledger: CollectiveProgress, row: int, look: TerminalStyle) -> str:
    """The same with its members, for all but the world's: ``mesh_dp (5-29/8)``."""
    name = group_name(ledger.group(row))
    members = ledger.members[row]
    return name if name == WORLD or not members else f"{cut(name, look)} ({strided(members, look)})"


def call_text(ledger: CollectiveProgress, operations: Sequence[int], look: TerminalStyle) -> str:
    """``all_gather [4096]→[32768] BFloat16``; of operations that may differ, what they have in common."""
    if not operations or not operations[0]:
        return ""
    every = [ledger.operation(row) for row in operations]
    one = every[0]
    sizes = one.inputs if one.inputs == one.outputs else "→".join(filter(None, (one.inputs, one.outputs)))
    if len({(other.inputs, other.outputs) for other in every}) > 1:
        sizes = "of different sizes"
    types = one.types if len({other.types for other in every}) == 1 else "of different types"
    parts = (cut(ledger.name(operations[0]), look), cut(sizes, look, _SIZES_WIDTH), cut(types, look, _SIZES_WIDTH))
    return " ".join(filter(None, parts))


def strided(ranks: RankSet, look: TerminalStyle, most: int = _SET_WIDTH) -> str:
    """A rank set with its regular parts as ``5-1021/8``, cut where it is long."""
    return short_text(ranks, None if look.full else most)


def cut(text: str, look: TerminalStyle, most: int = _NAME_WIDTH) -> str:
    return text if look.full or len(text) <= most else text[: most - 1] + "…"


def rank_cells(ranks: RankSet, look: TerminalStyle, members: RankSet | None = None) -> list[Piece]:
    """Two cells: the set, or ``all`` where it is all members, and how many they are."""
    text = "all" if members is not None and ranks == members else strided(ranks, look)
    return [(text, "rank"), (f"({len(ranks):,})", "dim")]
