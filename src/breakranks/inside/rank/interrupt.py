"""Reaching a thread that runs: stop it at its next line, end what it evaluates, take the tracing off.

A pending call runs in the main thread between two of its instructions; no signal handler is taken for it.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

from breakranks.inside.rank.seat import Seat, Stop
from breakranks.rankset import RankSet

_kept: list[Any] = []  # what C is to call must stay alive until it has


def soon(agent: Any, role: str, stoppers: RankSet, reason: str) -> None:
    """Stop the main thread at the next line that it comes to."""
    if agent.seat.stop is not None or agent.seat.pending:
        return
    agent.seat.pending = True
    stop = Stop(site="", count=0, role=role, stoppers=stoppers, reason=reason or "interrupt")

    def break_in() -> None:
        sys.settrace(None)  # what follows is ours, and not to be stepped through
        agent.seat.pending = False
        frame: Any = sys._getframe(1)
        while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("breakranks."):
            frame = frame.f_back
        if frame is not None and agent.seat.stop is None:
            from breakranks.inside.rank import api

            api.debugger(agent).break_in(frame, stop)

    _call_in_main(break_in)


def stop_tracing(seat: Seat) -> None:
    """The rank runs traced and nobody is there any more: its next event ends it."""
    if seat.tracing:
        from breakranks.inside.rank import api

        api.lose()


def stop_evaluating(seat: Seat) -> None:
    """Raise KeyboardInterrupt in what a console asked for, at its next instruction."""
    with seat.changed:
        if seat.evaluating and not seat.interrupted:
            seat.interrupted = seat.told_to_end = time.monotonic()
            _raise_in(seat.thread, KeyboardInterrupt)


def insist(seat: Seat) -> None:
    """It has not ended: a sleep or a read in C ends for a signal only. The handler is Python's own, or none is sent."""
    with seat.changed:
        if not seat.evaluating or not seat.interrupted or seat.signalled:
            return
        mine = seat.thread == threading.main_thread().ident
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _raise_in(seat.thread, None)  # once is enough
            seat.signalled = True
            signal.pthread_kill(seat.thread, signal.SIGINT)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    import ctypes

    what = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)


def _call_in_main(function: Any) -> None:
    import ctypes

    def guarded(_: Any) -> int:
        try:
            function()
        except Exception:  # whatever it was, it is no exception of the job's
            pass
        return 0

    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(guarded)
    _kept.append(call)
    del _kept[:-8]
    ctypes.pythonapi.Py_AddPendingCall(call, None)
