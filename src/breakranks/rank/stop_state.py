"""The stopped thread of a rank: its stop, the lines that wait for it, and when it resumes.

The stopped thread waits here for its next line, and the agent's thread provides it. One condition guards all of it.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from breakranks.rank_messages import RunState
from breakranks.rankset import RankSet

GONE = "the console has gone"
_CHECK_SECONDS = 1.0  # between two checks whether the agent's thread runs
_STRAY_SECONDS = 0.5  # within which a signal that was sent arrives


class StopInterrupted(BaseException):
    """Raised in the stopped thread by a Ctrl-C at the job's own terminal, which ends the job."""


class StopReleased(BaseException):
    """Raised in the stopped thread to leave the prompt, however deep it is nested. Its argument is the reason."""


@dataclass(slots=True, kw_only=True)
class StopInfo:
    """Why and where a thread is stopped. ``count`` is the number of this call of its site, from 1; 0: no site."""

    site: str
    count: int
    role: str  # "prompt": it waits for a user; "held": it waits for the ranks of ``stoppers``
    stoppers: RankSet
    reason: str
    until_go: bool = False
    crashed: bool = False
    exception: str = ""  # of a crash
    holds: RankSet = field(default_factory=RankSet)  # ranks to hold as soon as they can see that this one is stopped
    thread: str = ""
    since: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    where: dict[str, Any] = field(default_factory=dict)
    inside: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    announced: bool = False  # the stop was announced, or needs no announcement


@dataclass(slots=True)
class LineRequest:
    """One line from a console; ``takers`` are the ranks that get it."""

    client: Any
    number: int
    line: str
    takers: frozenset[int]


class StopState:
    """``tracing``: the rank runs, but pdb may stop it again. ``origin``: the call with which the debugging began.
    ``serves`` returns whether the agent's thread runs: without it, a stopped thread resumes."""

    def __init__(self, serves: Callable[[], bool]) -> None:
        self._serves = serves
        self.changed = threading.Condition()
        self._one = threading.Lock()
        self.turn = 0  # number of stops and resumptions, which orders the states that consoles get
        self.stop: StopInfo | None = None
        self.thread = 0  # ident of the thread that is, or was last, stopped
        self.tracing = False
        self.origin: tuple[str, int] = ("", 0)
        self.request: LineRequest | None = None
        self.evaluating = False
        self.interrupted = 0.0  # when the evaluation was interrupted; 0 when it has ended
        self.told_to_end = 0.0  # when an evaluation was last interrupted
        self.signalled = False
        self.pending = False  # the main thread will be stopped at its next line
        self._lines: deque[LineRequest] = deque()
        self._release = ""

    @property
    def debugging(self) -> bool:
        return self.stop is not None or self.tracing

    @property
    def state(self) -> RunState:
        if self.stop is None:
            return "running"
        return "busy" if self.evaluating else "stopped"

    def sits(self) -> bool:
        """Whether the calling thread is the stopped one."""
        return self.stop is not None and self.thread == threading.get_ident()

    @property
    def releasing(self) -> bool:
        """Whether the stopped thread resumes as soon as it can."""
        return bool(self._release)

    def take(self, stop: StopInfo) -> None:
        """Stop the calling thread, after any other has resumed. Raises StopReleased if the agent's thread has ended."""
        while not self._one.acquire(timeout=_CHECK_SECONDS):
            self._check()
        with self.changed:
            self.turn += 1
            if stop.count:
                self.origin = (stop.site, stop.count)
            self.stop = stop
            self.thread = threading.get_ident()
            self._release = ""

    def give(self, *, tracing: bool) -> None:
        """Resume the calling thread."""
        if not self.sits():
            return
        with self.changed:
            self.turn += 1
            self.stop = None
            self.tracing = tracing
            self.evaluating = False
            self._release = ""
        self._one.release()

    def put(self, request: LineRequest, *, turn: int | None = None) -> bool:
        """Queue a line for the stopped thread; False if none is stopped. ``turn``: not for a later stop than this."""
        with self.changed:
            if self.stop is None or self._release or self._is_after(turn):
                return False
            self._lines.append(request)
            self.changed.notify_all()
            return True

    def release(self, reason: str, *, turn: int | None = None) -> None:
        """Resume the stopped thread, as soon as its evaluation has ended. ``turn``: not from a later stop than this."""
        with self.changed:
            if self.stop is not None and not self._is_after(turn):
                self._release = self._release or reason
                self.changed.notify_all()

    def _is_after(self, turn: int | None) -> bool:
        return turn is not None and self.turn > turn

    def interrupt_evaluation(self) -> None:
        """Raise KeyboardInterrupt in the evaluation.

        In the main thread it is a signal, which also ends a sleep or a read in C; it is sent only where its handler is
        Python's own. Elsewhere it is an exception that is raised at the next instruction. It is never both, and it is
        never withdrawn: before 3.12 that leaves the interpreter looking for it forever.
        """
        with self.changed:
            if not self.evaluating or self.interrupted:
                return
            self.interrupted = self.told_to_end = time.monotonic()
            mine = self.thread == threading.main_thread().ident
            if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self.signalled = True
                signal.pthread_kill(self.thread, signal.SIGINT)
            else:
                kind = ctypes.py_object(KeyboardInterrupt)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), kind)

    def done(self) -> None:
        """The evaluation has ended and can no longer be interrupted."""
        with self.changed:
            self.evaluating = False
            interrupted, self.interrupted = self.interrupted, 0.0
        if interrupted:
            # A KeyboardInterrupt that leaves an eval of text marks the interpreter, caught or not: at the end of its
            # program it would end by the signal. The next eval clears the mark.
            eval("0")

    def next(self) -> LineRequest:
        """Wait for the next line in the stopped thread. Raises StopReleased when the thread is to resume."""
        self.done()
        self._catch_stray()
        with self.changed:
            while True:
                if self._release:
                    self._lines.clear()
                    raise StopReleased(self._release)
                self._check()
                if self._lines:
                    self.request = self._lines.popleft()
                    self.evaluating = True
                    return self.request
                # Two functions, so that the stack shows from outside which of the two it is.
                if self.stop is not None and self.stop.role == "held":
                    self.held()
                else:
                    self.at_prompt()

    def abandon(self) -> None:
        """In a forked child: the thread that had the lock may not exist."""
        self.changed = threading.Condition()

    def _check(self) -> None:
        if not self._serves():
            raise StopReleased(GONE)

    def held(self) -> None:
        self.changed.wait(_CHECK_SECONDS)

    def at_prompt(self) -> None:
        self.changed.wait(_CHECK_SECONDS)

    def _catch_stray(self) -> None:
        """Wait for a signal that was sent to end an evaluation: it must not arrive in the job's own code."""
        if not self.signalled:
            return
        self.signalled = False
        try:
            time.sleep(_STRAY_SECONDS)
        except KeyboardInterrupt:
            pass

    def drop(self, client: Any) -> None:
        """Forget the lines of a console that has gone."""
        with self.changed:
            self._lines = deque(request for request in self._lines if request.client is not client)
