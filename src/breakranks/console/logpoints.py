"""Logpoints: expressions that are printed each time a rank executes a line, folded over the ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from msgspec import Struct

from breakranks.console.debug_session import DebugSession
from breakranks.console.wait_times import HIT_SECONDS, POLL_SECONDS, PROBE_SECONDS
from breakranks.rank_messages import CodePlace, ProbedValue, ProbeEvent, ProbeRequest
from breakranks.rankset import RankSet
from breakranks.snapshot.answer_groups import FoldedAnswers, fold
from breakranks.snapshot.rank_answer import RankAnswer


class Logpoint(Struct, frozen=True, kw_only=True):
    """``place``: FILE:LINE; ``times``: the most hits of a rank."""

    place: str
    when: str | None
    prints: tuple[str, ...]
    times: int


class LogpointHit(Struct, frozen=True, kw_only=True):
    """One hit of ranks: the values of each expression."""

    number: int
    ranks: RankSet
    where: CodePlace
    values: tuple[tuple[str, FoldedAnswers], ...]


class LogpointError(Struct, frozen=True, kw_only=True):
    """The condition of a logpoint has raised in one rank; it is reported once."""

    rank: int
    text: str


def set_probe(session: DebugSession, probe: Logpoint, ranks: RankSet) -> dict[int, str]:
    """Set a logpoint in ranks; return the errors by rank."""
    request = ProbeRequest(place=probe.place, when=probe.when or "", prints=probe.prints, times=probe.times)
    replies = session.ask_done(request, ranks, PROBE_SECONDS)
    silent = {rank: "it did not answer" for rank in ranks if rank not in replies}
    return silent | {rank: reply.error for rank, reply in replies.items() if reply.error}


def hits(
    session: DebugSession, probe: Logpoint, ranks: RankSet, seconds: float
) -> Iterator[LogpointHit | LogpointError]:
    """Yield each hit, when all ranks have reported it or a moment has passed, until all ranks have had enough hits."""
    until = time.monotonic() + seconds
    open_hits: dict[int, tuple[float, dict[int, ProbeEvent]]] = {}
    counts = dict.fromkeys(ranks, 0)
    while True:
        session.poll(POLL_SECONDS)
        now = time.monotonic()
        events, session.hits = session.hits, []
        for rank, event in events:
            if event.error:
                yield LogpointError(rank=rank, text=event.error)
                continue
            open_hits.setdefault(event.hit, (now, {}))[1][rank] = event
            counts[rank] = max(counts.get(rank, 0), event.hit)
        here = ranks & session.ranks
        done = not here or all(counts[rank] >= probe.times for rank in here) or now > until
        for number in sorted(open_hits):
            since, reported = open_hits[number]
            if done or len(reported) >= len(here) or now - since > HIT_SECONDS:
                del open_hits[number]
                yield _hit(number, reported, probe)
        if done:
            return


def _hit(number: int, reported: dict[int, ProbeEvent], probe: Logpoint) -> LogpointHit:
    values = tuple(
        (name, fold(_answer(rank, event, at) for rank, event in reported.items()))
        for at, name in enumerate(probe.prints)
    )
    where = next(iter(reported.values())).where or CodePlace()
    return LogpointHit(number=number, ranks=RankSet(reported), where=where, values=values)


def _answer(rank: int, event: ProbeEvent, at: int) -> RankAnswer:
    value = event.values[at] if at < len(event.values) else ProbedValue()
    return RankAnswer(
        rank=rank, text=value.error or value.text, value=value.value, error=bool(value.error), cut=value.cut
    )
