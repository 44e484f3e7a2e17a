"""Short texts for groups, calls and large sets of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from breakranks.explain.collectives.call_facts import has_description
from breakranks.explain.collectives.collective_progress import CollectiveProgress
from breakranks.rankset import RankSet, short_text
from breakranks.show.terminal_text import Piece, TerminalStyle
from breakranks.snapshot.recorder_tables import Group

_SET_WIDTH = 28
_SIZES_WIDTH = 40
_NAME_WIDTH = 40
WORLD = "the world group"


def group_name(group: Group) -> str:
    """Return ``mesh_tp``, ``the world group``, or ``group 7`` for a group without a description."""
    if group.description == "default_pg":
        return WORLD
    return group.description if has_description(group) else f"group {group.name}"


def short_name(progress: CollectiveProgress, row: int, style: TerminalStyle) -> str:
    """Return the name with the members, except for the world group: ``mesh_dp (5-29/8)``."""
    name = group_name(progress.group(row))
    members = progress.members[row]
    return name if name == WORLD or not members else f"{cut(name, style)} ({strided(members, style)})"


def call_text(progress: CollectiveProgress, operations: Sequence[int], style: TerminalStyle) -> str:
    """Return ``all_gather [4096]→[32768] BFloat16``; of operations that may differ, what they have in common."""
    if not operations or not operations[0]:
        return ""
    every = [progress.operation(row) for row in operations]
    operation = every[0]
    sizes = (
        operation.inputs
        if operation.inputs == operation.outputs
        else "→".join(filter(None, (operation.inputs, operation.outputs)))
    )
    if len({(other.inputs, other.outputs) for other in every}) > 1:
        sizes = "of different sizes"
    types = operation.types if len({other.types for other in every}) == 1 else "of different types"
    parts = (cut(progress.name(operations[0]), style), cut(sizes, style, _SIZES_WIDTH), cut(types, style, _SIZES_WIDTH))
    return " ".join(filter(None, parts))


def strided(ranks: RankSet, style: TerminalStyle, most: int = _SET_WIDTH) -> str:
    """Return a rank set with its regular parts as ``5-1021/8``, cut if it is long."""
    return short_text(ranks, None if style.full else most)


def cut(text: str, style: TerminalStyle, most: int = _NAME_WIDTH) -> str:
    return text if style.full or len(text) <= most else text[: most - 1] + "…"


def rank_cells(ranks: RankSet, style: TerminalStyle, members: RankSet | None = None) -> list[Piece]:
    """Return two cells: the set, or ``all`` if it is all members, and its size."""
    text = "all" if members is not None and ranks == members else strided(ranks, style)
    return [(text, "rank"), (f"({len(ranks):,})", "dim")]
