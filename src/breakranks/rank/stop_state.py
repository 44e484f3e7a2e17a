"""The rank as a console sees it: what it is at, the lines that wait for it, and when it may go on.

The thread that is stopped waits here for its next line; the agent's thread fills it. All under one condition.
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

from breakranks.rankset import RankSet

GONE = "the console has gone"
_LOOK_SECONDS = 1.0  # between two looks whether the agent's thread is there
_STRAY_SECONDS = 0.5  # seconds within which a signal that was sent arrives


class StopInterrupted(BaseException):
    """Raised in the stopped thread when somebody has pressed Ctrl-C at the job itself: it is to end."""


class StopReleased(BaseException):
    """Raised in the stopped thread to leave the prompt, whatever it is nested in. Its argument says why."""


@dataclass(slots=True, kw_only=True)
class StopInfo:
    """Why and where a thread is stopped. ``count`` is how many calls of its site this one is (from 1, 0: no site)."""

    site: str
    count: int
    role: str  # "prompt": a person is asked; "held": for the ranks of ``stoppers``
    stoppers: RankSet
    reason: str
    until_go: bool = False
    holds: RankSet = field(default_factory=RankSet)  # ranks that are to hold as soon as this one is seen to be stopped
    thread: str = ""
    since: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    where: dict[str, Any] = field(default_factory=dict)
    inside: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    spoken: bool = False  # that it is held was said, or need not be


@dataclass(slots=True)
class LineRequest:
    """One line from a console; ``takers`` are the ranks that were sent it."""

    client: Any
    number: int
    line: str
    takers: frozenset[int]


class StopState:
    """``tracing``: the rank runs, but pdb will stop it again. ``origin``: the call that the debugging began with.
    ``serves`` tells whether the agent's thread is there: who is stopped goes on when it is not."""

    def __init__(self, serves: Callable[[], bool]) -> None:
        self._serves = serves
        self.changed = threading.Condition()
        self._one = threading.Lock()
        self.turn = 0  # how often somebody has sat down or stood up: what is told of it may overtake itself
        self.stop: StopInfo | None = None
        self.thread = 0  # ident of the thread that is, or was last, stopped
        self.tracing = False
        self.origin: tuple[str, int] = ("", 0)
        self.request: LineRequest | None = None
        self.evaluating = False
        self.interrupted = 0.0  # when what is evaluated was told to end
        self.told_to_end = 0.0  # when that was last so
        self.signalled = False
        self.pending = False  # the main thread will be stopped at its next line
        self._lines: deque[LineRequest] = deque()
        self._release = ""

    @property
    def debugging(self) -> bool:
        return self.stop is not None or self.tracing

    @property
    def state(self) -> str:
        if self.stop is None:
            return "running"
        return "busy" if self.evaluating else "stopped"

    def sits(self) -> bool:
        """Whether the thread that asks is the one at the prompt."""
        return self.stop is not None and self.thread == threading.get_ident()

    @property
    def releasing(self) -> bool:
        """Whether the stopped thread will go on as soon as it can."""
        return bool(self._release)

    def take(self, stop: StopInfo) -> None:
        """The calling thread stops; a second one waits until the first has gone. Raises Released if nobody serves."""
        while not self._one.acquire(timeout=_LOOK_SECONDS):
            self._check()
        with self.changed:
            self.turn += 1
            if stop.count:
                self.origin = (stop.site, stop.count)
            self.stop = stop
            self.thread = threading.get_ident()
            self._release = ""

    def give(self, *, tracing: bool) -> None:
        """It goes on."""
        if not self.sits():
            return
        with self.changed:
            self.turn += 1
            self.stop = None
            self.tracing = tracing
            self.evaluating = False
            self._release = ""
        self._one.release()

    def put(self, request: LineRequest) -> bool:
        """A line for the stopped thread; False where it is not at a prompt."""
        with self.changed:
            if self.stop is None or self._release:
                return False
            self._lines.append(request)
            self.changed.notify_all()
            return True

    def release(self, reason: str) -> None:
        """Let the stopped thread go, as soon as it is back from what it evaluates."""
        with self.changed:
            if self.stop is not None:
                self._release = self._release or reason
                self.changed.notify_all()

    def interrupt_evaluation(self) -> None:
        """Raise KeyboardInterrupt in what a console asked for.

        In the main thread by a signal, which ends a sleep or a read in C too; its handler is Python's own, or none is
        sent. Elsewhere by an exception that is raised at the next instruction. Never by both, and it is never taken
        back: before 3.12 that leaves the interpreter looking for it for ever.
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
        """What was asked has been done; it cannot be interrupted any more."""
        with self.changed:
            self.evaluating = False
            interrupted, self.interrupted = self.interrupted, 0.0
        if interrupted:
            # A KeyboardInterrupt that leaves an eval of text marks the interpreter, caught or not: it would end by the
            # signal when its program ends. The next eval takes the mark away.
            eval("0")

    def next(self) -> LineRequest:
        """The next line; called by the stopped thread, which waits. Raises Released when it is to go on."""
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
                # Which of the two it is, can so be seen in the stack from outside.
                if self.stop is not None and self.stop.role == "held":
                    self.held()
                else:
                    self.at_prompt()

    def abandon(self) -> None:
        """In a forked child: who had the lock may not be there."""
        self.changed = threading.Condition()

    def _check(self) -> None:
        if not self._serves():
            raise StopReleased(GONE)

    def held(self) -> None:
        self.changed.wait(_LOOK_SECONDS)

    def at_prompt(self) -> None:
        self.changed.wait(_LOOK_SECONDS)

    def _catch_stray(self) -> None:
        """A signal that was sent to end an evaluation must not arrive in the job's own code after it."""
        if not self.signalled:
            return
        self.signalled = False
        try:
            time.sleep(_STRAY_SECONDS)
        except KeyboardInterrupt:
            pass

    def drop(self, client: Any) -> None:
        """A console has gone: nobody waits for its lines."""
        with self.changed:
            self._lines = deque(one for one in self._lines if one.client is not client)
