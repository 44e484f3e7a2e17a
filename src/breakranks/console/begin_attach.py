"""The beginning of an attach: extended timeouts, the chosen ranks and thread, and the stop."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from breakranks.console.command_results import Notice, Outcome, RanksInspected, RanksStopped
from breakranks.console.commands import Console
from breakranks.console.debug_session import DebugSession
from breakranks.console.interrupt_ranks import choose_thread, extend_timeouts, halt
from breakranks.console.wait_times import CONNECT_SECONDS
from breakranks.rankset import RankSet


class AttachOptions(Struct, frozen=True, kw_only=True):
    """``ranks``: those to inspect, None for all. ``thread``: another than the main one. ``stop``: stop the ranks."""

    ranks: RankSet | None = None
    thread: str | None = None
    stop: bool = True


def connect(session: DebugSession) -> None:
    """Connect to the agents of an attach, and wait for their states."""
    session.scan()
    session.wait(lambda: bool(session.ranks) and session.is_greeted, CONNECT_SECONDS)


def begin_attach(console: Console, options: AttachOptions) -> Iterator[Outcome]:
    """Stop the chosen ranks as far as they are in Python. Raises UsageError where no rank has the thread."""
    session = console.session
    connect(session)
    extend_timeouts(session)
    ranks = session.ranks
    if options.ranks is not None:
        ranks &= options.ranks
        console.choose(ranks)
    if options.thread:
        ranks = choose_thread(session, ranks, options.thread)
    refused = halt(session, ranks) if options.stop else {}
    session.take_events()
    yield RanksStopped(states=tuple(session.state(rank) for rank in ranks & session.stopped))
    yield RanksInspected(states=tuple(session.ask_where(ranks - session.stopped).values()))
    for rank, why in refused.items():
        yield Notice(text=f"rank {rank} cannot be stopped: {why}", style="warn")
