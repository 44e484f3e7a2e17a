"""Probes: what is printed where ranks come by, without stopping them, folded over the ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from breakranks.backend.rank_connection import Message
from breakranks.console.debug_session import DebugSession
from breakranks.rankset import RankSet
from breakranks.snapshot.answer_groups import FoldedAnswers, RankAnswer, fold

_TOGETHER_SECONDS = 0.5  # seconds within which ranks come to the same hit


class Logpoint(Struct, frozen=True, kw_only=True):
    """``place``: FILE:LINE; ``times``: how often a rank tells at most."""

    place: str
    when: str | None
    prints: tuple[str, ...]
    times: int


class LogpointHit(Struct, frozen=True, kw_only=True):
    """One time that ranks came by: of each expression what they say."""

    number: int
    ranks: RankSet
    where: dict[str, Any]
    values: tuple[tuple[str, FoldedAnswers], ...]


class LogpointError(Struct, frozen=True, kw_only=True):
    """The condition of a probe raised, in one rank; said once."""

    rank: int
    text: str


def set_probe(session: DebugSession, probe: Logpoint, ranks: RankSet) -> dict[int, str]:
    """Set it in ranks; what went wrong, by rank."""
    message = {
        "do": "probe",
        "place": probe.place,
        "when": probe.when,
        "prints": list(probe.prints),
        "times": probe.times,
    }
    replies = session.ask(message, ranks, 5.0)
    silent = {rank: "it did not answer" for rank in ranks if rank not in replies}
    return silent | {rank: str(one["error"]) for rank, one in replies.items() if one.get("error")}


def hits(
    session: DebugSession, probe: Logpoint, ranks: RankSet, seconds: float
) -> Iterator[LogpointHit | LogpointError]:
    """Every hit, once all ranks have told it, or those that did within a moment; until all have told often enough."""
    until = time.monotonic() + seconds
    open_hits: dict[int, tuple[float, dict[int, Message]]] = {}
    told = dict.fromkeys(ranks, 0)
    while True:
        session.poll(0.05)
        now = time.monotonic()
        taken, session.hits = session.hits, []
        for rank, message in taken:
            if message.get("error"):
                yield LogpointError(rank=rank, text=str(message["error"]))
                continue
            number = int(message.get("hit") or 0)
            open_hits.setdefault(number, (now, {}))[1][rank] = message
            told[rank] = max(told.get(rank, 0), number)
        here = ranks & session.ranks
        done = not here or all(told[rank] >= probe.times for rank in here) or now > until
        for number in sorted(open_hits):
            since, messages = open_hits[number]
            if done or len(messages) >= len(here) or now - since > _TOGETHER_SECONDS:
                del open_hits[number]
                yield _hit(number, messages, probe)
        if done:
            return


def _hit(number: int, messages: dict[int, Message], probe: Logpoint) -> LogpointHit:
    values = []
    for at, name in enumerate(probe.prints):
        found = {rank: _value(message, at) for rank, message in messages.items()}
        answers = [
            RankAnswer(
                rank=rank,
                text=str(one.get("error") or one.get("text") or ""),
                value=one["value"] if isinstance(one.get("value"), dict) else None,
                error=bool(one.get("error")),
                cut=int(one.get("cut") or 0),
            )
            for rank, one in found.items()
        ]
        values.append((name, fold(answers)))
    where = next(iter(messages.values())).get("where")
    return LogpointHit(
        number=number, ranks=RankSet(messages), where=where if isinstance(where, dict) else {}, values=tuple(values)
    )


def _value(message: Message, at: int) -> Message:
    values = message.get("values")
    one = values[at] if isinstance(values, list) and at < len(values) else {}
    return one if isinstance(one, dict) else {}
