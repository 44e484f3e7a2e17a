"""Waiting for the first stop of a job, and for ranks that stop at nearly the same moment."""

from __future__ import annotations

import time
from collections.abc import Callable

from breakranks.console.debug_session import DebugSession
from breakranks.console.job_choice import no_job
from breakranks.console.wait_times import (
    ALL_STOPS_SECONDS,
    ANOTHER_STOP_SECONDS,
    FOREVER_SECONDS,
    HELLO_SECONDS,
    SCRIPT_STOP_SECONDS,
    SETTLE_SECONDS,
    USER_STOP_SECONDS,
)
from breakranks.errors import BreakranksError


def await_first_stop(session: DebugSession, seconds: float | None) -> None:
    """Wait until a rank has stopped, for a script. Raises NoJobError, or BreakranksError where none stops in time."""
    wait = SCRIPT_STOP_SECONDS if seconds is None else seconds
    session.scan()
    if not session.wait(lambda: bool(session.stopped), wait):
        if not session.ranks:
            raise no_job(session.job)
        raise BreakranksError(f"no rank has stopped in {wait:.0f} s", "`breakranks stacks` shows where the ranks are.")
    wait_for_late_stops(session)


def offer_first_stop(session: DebugSession, seconds: float | None, say: Callable[[str], None]) -> bool:
    """Wait until a rank has stopped, for a user. False if none has, or the user pressed Ctrl-C. Raises NoJobError."""
    session.scan()
    if not session.wait(lambda: bool(session.stopped), USER_STOP_SECONDS):
        if not session.ranks and seconds is None:
            raise no_job(session.job)
        say("no rank has stopped yet; waiting (Ctrl-C leaves)")
        connected = bool(session.ranks)

        def settled() -> bool:
            nonlocal connected
            connected = connected or bool(session.ranks)
            return bool(session.stopped) or (connected and not session.ranks)

        try:
            session.wait(settled, FOREVER_SECONDS if seconds is None else seconds)
        except KeyboardInterrupt:
            return False
        if not session.stopped and not connected:
            raise no_job(session.job)
        if not session.stopped:
            say("no rank has stopped" if session.ranks else "the job has ended")
            return False
    wait_for_late_stops(session)
    return True


def wait_for_late_stops(session: DebugSession) -> None:
    """Wait a moment for the last ranks, which reach a stop at nearly the same time as the first. Drops the events."""
    session.wait(lambda: session.is_greeted, HELLO_SECONDS)
    deadline = time.monotonic() + SETTLE_SECONDS
    session.wait(lambda: bool(session.world) and len(session.stopped) >= session.world, ALL_STOPS_SECONDS)
    while time.monotonic() < deadline:
        before = session.stopped
        session.wait(lambda: len(session.stopped) >= session.world, ANOTHER_STOP_SECONDS)
        if session.stopped == before:
            break
    session.take_events()
