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
    """Raise KeyboardInterrupt in what a console asked for.

    In the main thread by a signal, which ends a sleep or a read in C too; its handler is Python's own, or none is sent.
    Elsewhere by an exception that is raised at the next instruction. Never by both, and it is never taken back: before
    3.12 that leaves the interpreter looking for it for ever.
    """
    import ctypes

    with seat.changed:
        if not seat.evaluating or seat.interrupted:
            return
        seat.interrupted = seat.told_to_end = time.monotonic()
        mine = seat.thread == threading.main_thread().ident
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            seat.signalled = True
            signal.pthread_kill(seat.thread, signal.SIGINT)
        else:
            kind = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(seat.thread), kind)


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
