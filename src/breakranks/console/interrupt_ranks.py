"""Stopping ranks that run: one in Python stops at its next line, one that is blocked in C can only be inspected."""

from __future__ import annotations

import time

from breakranks.console.debug_session import DebugSession
from breakranks.console.wait_times import (
    ATTACH_HALT_SECONDS,
    HALT_CHECK_SECONDS,
    THREAD_SECONDS,
    TIMEOUTS_SECONDS,
    WHERE_SECONDS,
)
from breakranks.errors import UsageError
from breakranks.machine_suspension import stalled
from breakranks.rank_messages import InterruptRequest, PatienceRequest, WithdrawRequest
from breakranks.rankset import RankSet


def extend_timeouts(session: DebugSession) -> None:
    """Extend the timeouts of all ranks before one is stopped: a collective that has begun by then keeps its own."""
    session.ask(PatienceRequest(needed=True), session.ranks, TIMEOUTS_SECONDS)


def choose_thread(session: DebugSession, ranks: RankSet, name: str) -> RankSet:
    """Inspect a thread by its name; return the ranks that have it."""
    pending = session.start(f"thread {name}", ranks, look=True)
    session.wait(lambda: not pending.awaited, THREAD_SECONDS)
    having = RankSet(rank for rank, answer in pending.answers.items() if not answer.error)
    if not having:
        why = next((answer.text.strip() for answer in pending.answers.values()), f"no rank has a thread {name!r}")
        raise UsageError(why, "`breakranks stacks --threads` shows them all.")
    return having


def halt(session: DebugSession, ranks: RankSet) -> dict[int, str]:
    """Stop those ranks that are in Python; the others keep running. Return by rank why it cannot be stopped."""
    replies = session.ask_done(InterruptRequest(reason="attach"), ranks - session.stopped)
    refused = {rank: reply.why for rank, reply in replies.items() if reply.why}
    wanted = (ranks & session.ranks) - RankSet(refused)
    until = time.monotonic() + ATTACH_HALT_SECONDS
    while (began := time.monotonic()) < until:
        session.wait(lambda: wanted <= session.stopped, HALT_CHECK_SECONDS)
        waiting = (wanted - session.stopped) & session.ranks
        states = session.ask_where(waiting, WHERE_SECONDS)
        if all(rank in states and states[rank].blocked for rank in waiting):
            break
        until += stalled(time.monotonic() - began, HALT_CHECK_SECONDS + WHERE_SECONDS)
    waiting = (wanted - session.stopped) & session.ranks
    session.ask(WithdrawRequest(), waiting)
    session.drain()
    return refused
