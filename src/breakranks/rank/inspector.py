"""Looking into a thread that is not stopped: its frames are read, and evaluated in, from a thread of ours.

The thread that is looked at goes on, or stays blocked in C; nothing of it is traced. What is asked runs in a thread of
its own, so that an expression that never returns costs the job nothing but that thread.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import fork_hooks, thread_location, thread_states

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent
    from breakranks.rank.inspect_pdb import InspectPdb
    from breakranks.rank.stop_state import LineRequest

NAME = "breakranks look"
_MAX_THREADS = 200
_TURN_SECONDS = 2.0  # seconds that a question waits for one that another console has asked


class Inspector:
    """``thread`` is the ident of the one that is looked at: the main thread, or the one that somebody has chosen."""

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
        """Whether a line is about threads, or about one that is not the stopped one."""
        stopped = self._agent.stop_state.stop is not None
        return not stopped or line.split(None, 1)[:1] in (["threads"], ["thread"]) or self._elsewhere()

    def _elsewhere(self) -> bool:
        return bool(self.chosen) and self.chosen != self._agent.stop_state.thread

    def take(self, request: LineRequest) -> None:
        """Answer one line, in a thread of its own, when it is its turn."""
        with self._guard:
            thread = threading.Thread(target=self._answer, args=(request,), name=NAME, daemon=True)
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
        """Whether the thread that is looked at stands in a system call."""
        return thread_states.blocked(thread_states.native_of(self.thread))

    def tidy(self) -> None:
        """Let go of frames that the thread has left: they would keep the job's tensors."""
        if self._debugger is not None and not self.evaluating:
            self._debugger.tidy(self.frame())

    def frame(self) -> FrameType | None:
        """The innermost frame of the thread that is looked at."""
        return sys._current_frames().get(self.thread)

    # ---- in the thread that answers

    def _answer(self, request: LineRequest) -> None:
        try:
            self._answered(request)
        except BaseException:  # an interrupt that came late, or nobody to be told: nothing is written into the job
            if self._busy is threading.current_thread():
                self._busy = None

    def _has_turn(self, request: LineRequest) -> bool:
        me, until = threading.current_thread(), time.monotonic() + _TURN_SECONDS
        while self._busy is not me:
            late = time.monotonic() > until  # looked at before the turn: it may be over meanwhile
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
        self._busy = None  # what is asked next may come before this thread has ended
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
            return "that thread has ended; the main thread is looked at again", True, 0, None
        return self._debugger.look(frame, line, request)

    def _tell(self, request: LineRequest, text: str, *, failed: bool, cut: int = 0, value: Any = None) -> None:
        answer = {
            "event": "answer",
            "id": request.number,
            "text": text,
            "cut": cut,
            "value": value,
            "error": failed,
            "went": False,
            "looked": True,
            "state": self._agent.state(),
        }
        self._agent.server.tell(answer, request.client)

    # ---- threads

    def _threads(self) -> str:
        lines = []
        stop = self._agent.stop_state.stop
        for ident, frame in list(theirs().items())[:_MAX_THREADS]:
            stopped = stop is not None and ident == self._agent.stop_state.thread
            told = stop.where if stop is not None and stopped else thread_location.frames_of(frame, 1)[0]
            mark = "->" if ident == self.thread else "  "
            at = f"{told.get('function')}, {told.get('file')}:{told.get('line')}"
            lines.append(f"{mark} {_label(ident)}{' (stopped)' if stopped else ''}  {at}")
        return "\n".join(lines) + "\n"

    def _choose(self, name: str) -> tuple[str, bool]:
        known = theirs()
        if not name:
            self.chosen = 0
            return f"looking at {_label(self.thread)}\n", False
        found = find(name)
        if found not in known:
            names = ", ".join(name_of(ident) for ident in list(known)[:20])
            return f"there is no thread {name!r} in Python here; there is: {names}\n", True
        self.chosen = found
        return f"looking at {_label(found)}\n", False


def find(name: str) -> int:
    """The ident of a thread by its name, its number in the kernel or its ident; 0 where there is none."""
    if name == "main":
        return threading.main_thread().ident or 0
    for ident, thread in list(threading._active.items()):  # type: ignore[attr-defined]
        if thread.name == name or name in (str(ident), str(thread.native_id)):
            return int(ident)
    return int(name) if name.isdigit() else 0


def _label(ident: int) -> str:
    """The name alone, where it is the only one: so that ranks say the same."""
    names = [thread.name for thread in list(threading._active.values())]  # type: ignore[attr-defined]
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return thread.name if thread is not None and names.count(thread.name) == 1 else name_of(ident)


def name_of(ident: int) -> str:
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return f"{thread.name} ({thread.native_id})" if thread is not None else f"thread {ident}"


def theirs() -> dict[int, FrameType]:
    """The threads that run Python and are not ours."""
    found = {}
    for ident, frame in sys._current_frames().items():
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        if thread is None or not str(thread.name).startswith("breakranks"):
            found[ident] = frame
    return found
