"""Inspecting a thread that is not stopped: its frames are read, and expressions evaluated, in a thread of breakranks.

The inspected thread keeps running, or stays blocked in C; it is not traced. Each line is evaluated in a thread of its
own, so that an expression that never returns costs the job nothing but that thread.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import fork_hooks, thread_location, thread_states
from breakranks.rank.thread_names import find_thread, numbered_name, thread_label
from breakranks.rank_messages import AnswerEvent

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent
    from breakranks.rank.inspect_pdb import InspectPdb
    from breakranks.rank.stop_state import LineRequest

_NAME = "breakranks look"
_MAX_THREADS = 200
_TURN_SECONDS = 2.0  # that a line waits for one that another console has sent


class Inspector:
    """``thread`` is the ident of the inspected thread: the main thread, or the one that a user has chosen."""

    def __init__(self, agent: RankAgent) -> None:
        self._agent = agent
        self.chosen = 0
        self._debugger: InspectPdb | None = None
        self._busy: threading.Thread | None = None
        self._line = ""
        self._guard = threading.Lock()

    @property
    def thread(self) -> int:
        stop_state = self._agent.stop_state
        return self.chosen or (stop_state.debugging and stop_state.thread) or threading.main_thread().ident or 0

    def wants(self, line: str) -> bool:
        """Whether a line is about threads, or about a thread that is not stopped."""
        stopped = self._agent.stop_state.stop is not None
        return not stopped or line.split(None, 1)[:1] in (["threads"], ["thread"]) or self._elsewhere()

    def _elsewhere(self) -> bool:
        return bool(self.chosen) and self.chosen != self._agent.stop_state.thread

    def take(self, request: LineRequest) -> None:
        """Answer one line, in a thread of its own, when it is its turn."""
        with self._guard:
            thread = threading.Thread(target=self._answer, args=(request,), name=_NAME, daemon=True)
            if not self.evaluating:
                self._busy, self._line = thread, request.line[:80]
            thread.start()

    @property
    def evaluating(self) -> bool:
        return self._busy is not None and self._busy.is_alive()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in what is evaluated, at its next instruction."""
        busy = self._busy
        if busy is not None and busy.ident is not None and busy.is_alive():
            kind = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(busy.ident), kind)

    def blocked(self) -> bool:
        """Whether the inspected thread is in a system call."""
        return thread_states.blocked(thread_states.native_of(self.thread))

    def tidy(self) -> None:
        """Release frames that the thread has left, which would keep the job's tensors."""
        if self._debugger is not None and not self.evaluating:
            self._debugger.tidy(self.frame())

    def forget(self) -> None:
        """Release all frames."""
        if self._debugger is not None:
            self._debugger.tidy(None)

    def frame(self) -> FrameType | None:
        """The innermost frame of the inspected thread."""
        return sys._current_frames().get(self.thread)

    # ---- in the thread that answers

    def _answer(self, request: LineRequest) -> None:
        try:
            self._answered(request)
        except BaseException:  # a late interrupt, or no client left: nothing is written into the job's output
            if self._busy is threading.current_thread():
                self._busy = None

    def _has_turn(self, request: LineRequest) -> bool:
        me, until = threading.current_thread(), time.monotonic() + _TURN_SECONDS
        while self._busy is not me:
            late = time.monotonic() > until  # read before the check: the other line may end after it
            with self._guard:
                if not self.evaluating:
                    self._busy, self._line = me, request.line[:80]
                    continue
            if late:
                return False
            time.sleep(0.01)
        return True

    def _answered(self, request: LineRequest) -> None:
        if not self._has_turn(request):
            self._tell(request, f"is still evaluating `{self._line}`: `interrupt` ends it", failed=True)
            return
        try:
            text, failed, cut, value = self._do(request.line.strip(), request)
        except BaseException as error:
            text, failed, cut, value = f"{type(error).__name__}: {error}"[:2000], True, 0, None
        self._busy = None  # the next line may come before this thread has ended
        self._tell(request, text, failed=failed, cut=cut, value=value)

    def _do(self, line: str, request: LineRequest) -> tuple[str, bool, int, dict[str, Any] | None]:
        word, _, rest = line.partition(" ")
        if word == "threads":
            return self._threads(), False, 0, None
        if word == "thread":
            return (*self._choose(rest.strip()), 0, None)
        if self._debugger is None:
            with fork_hooks.ForksPaused():
                from breakranks.rank.inspect_pdb import InspectPdb

            self._debugger = InspectPdb(self._agent)
        frame = self.frame()
        if frame is None:
            self.chosen = 0
            return "that thread has ended; the main thread is inspected again", True, 0, None
        return self._debugger.look(frame, line, request)

    def _tell(
        self, request: LineRequest, text: str, *, failed: bool, cut: int = 0, value: dict[str, Any] | None = None
    ) -> None:
        event = AnswerEvent(id=request.number, text=text, cut=cut, value=value, error=failed, state=self._agent.state())
        self._agent.server.tell(event, request.client)

    # ---- threads

    def _threads(self) -> str:
        lines = []
        stop = self._agent.stop_state.stop
        for ident, frame in list(thread_states.others().items())[:_MAX_THREADS]:
            stopped = stop is not None and ident == self._agent.stop_state.thread
            place = stop.where if stop is not None and stopped else thread_location.frames_of(frame, 1)[0]
            mark = "->" if ident == self.thread else "  "
            at = f"{place.get('function')}, {place.get('file')}:{place.get('line')}"
            lines.append(f"{mark} {thread_label(ident)}{' (stopped)' if stopped else ''}  {at}")
        return "\n".join(lines) + "\n"

    def _choose(self, name: str) -> tuple[str, bool]:
        known = thread_states.others()
        if not name:
            self.chosen = 0
            return f"inspecting {thread_label(self.thread)}\n", False
        chosen = find_thread(name)
        if chosen not in known:
            names = ", ".join(numbered_name(ident) for ident in list(known)[:20])
            return f"no thread {name!r} runs Python here; threads: {names}\n", True
        self.chosen = chosen
        return f"inspecting {thread_label(chosen)}\n", False
