"""Stopping ranks that run: one that is in Python stops at its next line, one that is blocked in C is only looked at."""

from __future__ import annotations

import time

from breakranks.console.debug_session import DebugSession
from breakranks.errors import UsageError
from breakranks.own_suspension import stalled
from breakranks.rankset import RankSet

_LOOK_SECONDS = 0.1  # seconds between two looks at a rank that has not stopped
_ANSWER_SECONDS = 1.0  # seconds in which it says where it is
_EXTEND_SECONDS = 5.0  # seconds for the timeouts of all groups to be made long
_PATIENCE_SECONDS = 4.0  # seconds for a rank that computes in C to come back to Python


def make_patient(session: DebugSession) -> None:
    """Every rank's timeouts become long, before one is stopped: what another has begun by then keeps its own."""
    session.ask({"do": "patience", "needed": True}, session.ranks, _EXTEND_SECONDS)


def choose_thread(session: DebugSession, ranks: RankSet, name: str) -> RankSet:
    """Look at a thread by its name; the ranks that have it."""
    pending = session.start(f"thread {name}", ranks, look=True)
    session.wait(lambda: not pending.awaited, _EXTEND_SECONDS)
    found = RankSet(rank for rank, answer in pending.answers.items() if not answer.error)
    if not found:
        said = next((answer.text.strip() for answer in pending.answers.values()), f"nobody has a thread {name!r}")
        raise UsageError(said, "`breakranks stacks --threads` shows them all.")
    return found


def halt(session: DebugSession, ranks: RankSet) -> dict[int, str]:
    """Stop ranks, as far as they are in Python; the others go on as if nobody had asked. By rank, why it cannot be."""
    replies = session.ask({"do": "interrupt", "reason": "attach"}, ranks - session.stopped)
    refused = {rank: str(reply["why"]) for rank, reply in replies.items() if reply.get("why")}
    wanted = (ranks & session.ranks) - RankSet(refused)
    until = time.monotonic() + _PATIENCE_SECONDS
    while (began := time.monotonic()) < until:
        session.wait(lambda: wanted <= session.stopped, _LOOK_SECONDS)
        waiting = (wanted - session.stopped) & session.ranks
        replies = session.ask({"do": "where"}, waiting, _ANSWER_SECONDS)
        if all(replies.get(rank, {}).get("blocked") for rank in waiting):
            break
        until += stalled(time.monotonic() - began, _LOOK_SECONDS + _ANSWER_SECONDS)
    waiting = (wanted - session.stopped) & session.ranks
    session.ask({"do": "withdraw"}, waiting)
    session.drain()
    return refused
