"""What has happened to ranks since the last prompt."""

from __future__ import annotations

import time
from collections.abc import Iterator

from breakranks.console.command_results import Notice, Outcome, RanksStopped
from breakranks.console.debug_session import DebugSession, SessionEvent
from breakranks.console.rank_phrases import verb
from breakranks.console.wait_times import FOLD_SECONDS, MOST_FOLD_SECONDS
from breakranks.rankset import RankSet
from breakranks.snapshot.answer_groups import fold
from breakranks.snapshot.rank_answer import RankAnswer


def news(session: DebugSession, patience: float) -> Iterator[Outcome]:
    """Output, ends and stops that no line has caused. Stops a moment apart are yielded together."""
    session.drain()
    _collect_stops(session, min(FOLD_SECONDS, patience))
    events = session.take_events()
    texts: dict[int, str] = {}
    last: dict[int, SessionEvent] = {}
    for event in events:
        if event.what == "said":
            texts[event.rank] = texts.get(event.rank, "") + event.text
        else:
            last[event.rank] = event
    if texts:
        yield fold(RankAnswer(rank=rank, text=text) for rank, text in texts.items())
    gone = RankSet(event.rank for event in events if event.what == "gone") - session.ranks
    if gone:
        yield Notice(text=verb(gone, "has ended", "have ended"), style="warn")
    stopped = tuple(event.state for event in last.values() if event.what == "stopped")
    if stopped:
        yield RanksStopped(states=stopped)


def _collect_stops(session: DebugSession, pause: float) -> None:
    """Ranks reach the same place a moment apart: wait for those that follow a rank that has stopped."""
    until = time.monotonic() + MOST_FOLD_SECONDS
    if not any(event.what == "stopped" for event in session.events):
        return
    while time.monotonic() < until:
        before = session.stopped

        def another(before: RankSet = before) -> bool:
            return session.stopped != before or session.ranks <= session.stopped

        if not session.wait(another, pause) or session.ranks <= session.stopped:
            return
