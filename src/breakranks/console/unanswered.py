"""What ranks wait for that have not answered: a collective that held ranks will not enter, or something else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from breakranks.rankset import RankSet, ranks_text

_MAX_MEMBERS = 1_000_000


class UnansweredRanks(Struct, frozen=True, kw_only=True):
    """Ranks that wait for the same; ``held``: for ranks that are stopped, so nothing will happen by itself."""

    ranks: RankSet
    held: bool
    text: str


def waits_of(replies: Mapping[int, Mapping[str, Any]], *, stopped: RankSet, here: RankSet) -> list[UnansweredRanks]:
    """Each thing that is waited for, once, with who waits for it. ``stopped`` are ranks that will not come."""
    groups: dict[tuple[str, RankSet, str], list[int]] = {}
    for rank, reply in replies.items():
        if reply.get("state") == "stopped":
            continue
        collective = reply.get("collective")
        op, members = _collective(collective) if isinstance(collective, Mapping) else ("", RankSet())
        groups.setdefault((op, members, _place(reply)), []).append(rank)
    return [_wait(RankSet(ranks), op, members, place, stopped, here) for (op, members, place), ranks in groups.items()]


def _wait(ranks: RankSet, op: str, members: RankSet, place: str, stopped: RankSet, here: RankSet) -> UnansweredRanks:
    who = ranks_text(ranks)
    one = len(ranks) == 1
    if not op:
        return UnansweredRanks(
            ranks=ranks, held=False, text=f"{who} {'is' if one else 'are'} {place or 'not back yet'}"
        )
    missing = (members or here) & stopped
    if not missing:
        return UnansweredRanks(ranks=ranks, held=False, text=f"{who} {'is' if one else 'are'} in {op}, {place}")
    which = "which is held" if len(missing) == 1 else "which are held"
    return UnansweredRanks(
        ranks=ranks,
        held=True,
        text=f"{who} {'waits' if one else 'wait'} in {op} for {missing}, {which}: `go {missing}` or `all n`",
    )


def _collective(found: Mapping[str, Any]) -> tuple[str, RankSet]:
    members = found.get("members")
    listed = members if isinstance(members, list) else []
    known = [one for one in listed if isinstance(one, int) and 0 <= one < _MAX_MEMBERS]
    return str(found.get("op", "a collective"))[:100], RankSet(known)


def _place(reply: Mapping[str, Any]) -> str:
    frames = reply.get("frames")
    frame = next((one for one in frames if isinstance(one, Mapping)), None) if isinstance(frames, list) else None
    if frame is None:
        return ""
    return f"in {frame.get('function')}, {os.path.basename(str(frame.get('file')))}:{frame.get('line')}"
