"""Reaching a thread that runs: stop it at its next line, end what it evaluates, take the tracing off."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

from breakranks.inside.rank import forks
from breakranks.inside.rank.seat import Seat, Stop
from breakranks.rankset import RankSet


def soon(agent: Any, role: str, stoppers: RankSet, reason: str, thread: int | None = None) -> str:
    """Stop a thread, the main one if none is named, at the next line that it comes to; why that cannot be, or nothing.

    It may be long in C before it comes to one: ``withdraw`` takes it back until then.
    """
    with forks.Paused():  # in this thread, so that the job's need not import it when it comes to its stop
        from breakranks.inside.rank import armed, stop, threads  # noqa: F401

    if agent.seat.stop is not None or agent.seat.pending:
        return ""
    wanted = Stop(site="", count=0, role=role, stoppers=stoppers, reason=reason or "interrupt")
    return armed.halt(agent, thread or threads.main(), wanted)


def withdraw(agent: Any) -> None:
    """No thread is to be stopped any more that has not been yet."""
    from breakranks.inside.rank import armed

    armed.withdraw(agent)


def stop_tracing(seat: Seat) -> None:
    """Nobody is there any more: nothing stops again."""
    from breakranks.inside.rank import armed

    known = armed.present()
    if known is not None and known.agent.seat is seat:
        armed.disarm(known.agent)


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
