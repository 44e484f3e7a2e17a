"""What ranks wait for that have not answered: a collective that held ranks do not enter, or something else."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from breakranks.console.rank_phrases import are, verb
from breakranks.rank_messages import CodePlace, WhereEvent
from breakranks.rankset import RankSet, ranks_text

_MAX_MEMBERS = 1_000_000
_MAX_OPERATION_CHARACTERS = 100


class UnansweredRanks(Struct, frozen=True, kw_only=True):
    """Ranks that wait for the same. ``held``: they wait for stopped ranks, and cannot make progress."""

    ranks: RankSet
    held: bool
    text: str


def waits_of(replies: Mapping[int, WhereEvent], *, stopped: RankSet, here: RankSet) -> list[UnansweredRanks]:
    """What is waited for, each with the ranks that wait. ``stopped`` are ranks that do not take part."""
    groups: dict[tuple[str, RankSet, str], list[int]] = {}
    for rank, reply in replies.items():
        if reply.state != "stopped":
            groups.setdefault((*_collective(reply), _place(reply)), []).append(rank)
    return [
        _wait(RankSet(ranks), operation, members or here, place, stopped)
        for (operation, members, place), ranks in groups.items()
    ]


def _wait(ranks: RankSet, operation: str, members: RankSet, place: str, stopped: RankSet) -> UnansweredRanks:
    if not operation:
        return UnansweredRanks(ranks=ranks, held=False, text=are(ranks, place or "not answering yet"))
    missing = members & stopped
    if not missing:
        return UnansweredRanks(ranks=ranks, held=False, text=are(ranks, f"in {operation}, {place}"))
    which = "which is held" if len(missing) == 1 else "which are held"
    waits = verb(ranks, "waits", "wait")
    return UnansweredRanks(
        ranks=ranks,
        held=True,
        text=f"{waits} in {operation} for {ranks_text(missing)}, {which}: `go {missing}` or `all n`",
    )


def _collective(reply: WhereEvent) -> tuple[str, RankSet]:
    collective = reply.collective
    if collective is None:
        return "", RankSet()
    members = RankSet(rank for rank in collective.members if 0 <= rank < _MAX_MEMBERS)
    return collective.op[:_MAX_OPERATION_CHARACTERS], members


def _place(reply: WhereEvent) -> str:
    """The line of the user's code that has called a collective, or the innermost line."""
    place: CodePlace | None = reply.collective
    if place is None or place.line is None:
        place = reply.frames[0] if reply.frames else None
    return f"in {place.function}, {place.short_file}" if place is not None else ""
