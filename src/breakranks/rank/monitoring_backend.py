"""The backend of breakpoints from Python 3.12 on: events of ``sys.monitoring``.

A function is checked at its first call; if nothing in it is armed, it causes no further events. In other functions each
line causes one event, and only armed lines cause more. A hot loop costs nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import thread_states
from breakranks.rank.breakpoint_table import BREAKS, BreakpointRefused, clean

if TYPE_CHECKING:
    from breakranks.rank.breakpoints import Breakpoints

_NAME = "breakranks"
_TOOL_IDS = (4, 3, 0, 1, 2, 5)  # first those that Python reserves for no kind of tool
_WINDOW_SECONDS = 0.05  # for which all lines of all threads cause events, until the thread that is to stop reaches one
_STEP_SECONDS = 0.001


class MonitoringBackend:
    """The backend from 3.12 on. Every method except the events is called with the lock of ``engine`` held."""

    def __init__(self, engine: Breakpoints) -> None:
        self._engine = engine
        self._python: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._events: Any = self._python.events
        self._tool = -1
        self._wide = False  # all lines cause events
        self._codes: dict[int, tuple[CodeType, int]] = {}  # by id, the code with local events, and these events
        self._stacks: dict[int, dict[int, CodeType]] = {}  # by thread that is to stop, the code on its stack
        self._met: set[int] = set()

    # ---- arming

    def refresh(self) -> None:
        events = self._needed()
        if not events:
            self.stop()
            return
        if self._tool < 0:
            self._begin()
        self._met.clear()
        for code, _ in list(self._codes.values()):
            self._mark(code)
        for frame in thread_states.current_frames().values():
            for running in thread_states.stack(frame):
                self._mark(running.f_code)
        self._python.set_events(self._tool, events)
        self._python.restart_events()  # also those that were disabled before

    def _needed(self) -> int:
        engine, events = self._engine, self._events
        found = 0
        if BREAKS or engine.probes or engine.halts:
            found |= events.PY_START | events.PY_RESUME | events.PY_THROW
        if engine.watches:
            found |= events.PY_UNWIND
        if engine.catches:
            found |= events.RAISE
        if self._wide:
            found |= events.LINE | events.JUMP
        return int(found)

    def _begin(self) -> None:
        for tool in _TOOL_IDS:
            try:
                self._python.use_tool_id(tool, _NAME)
            except ValueError:  # another tool has it
                continue
            self._tool = tool
            for event, callback in self._callbacks().items():
                self._python.register_callback(tool, event, callback)
            return
        raise BreakpointRefused("all six tool ids of sys.monitoring are in use")

    def _callbacks(self) -> dict[int, Any]:
        events = self._events
        return {
            events.PY_START: self._started,
            events.PY_RESUME: self._started,
            events.PY_THROW: self._thrown,
            events.LINE: self._line,
            events.JUMP: self._jumped,
            events.PY_RETURN: self._returned,
            events.PY_UNWIND: self._unwound,
            events.RAISE: self._raised,
        }

    def passing(self, frame: FrameType, event: str, argument: Any) -> None:
        """Do nothing: the events of a thread that pdb steps arrive here as those of any other."""

    def stop(self) -> None:
        if self._tool < 0:
            return
        tool, self._tool = self._tool, -1
        self._python.set_events(tool, 0)
        for code, _ in list(self._codes.values()):
            self._python.set_local_events(tool, code, 0)
        for event in self._callbacks():
            self._python.register_callback(tool, event, None)
        self._python.free_tool_id(tool)
        self._codes.clear()
        self._stacks.clear()
        self._met.clear()

    def _mark(self, code: CodeType) -> None:
        """Set the local events that this code needs now."""
        known = self._codes.get(id(code), (code, 0))[1]
        wanted = self._local(code)
        if wanted == known or self._tool < 0:
            return
        self._python.set_local_events(self._tool, code, wanted)
        if wanted:
            self._codes[id(code)] = (code, wanted)
        else:
            self._codes.pop(id(code), None)

    def _local(self, code: CodeType) -> int:
        engine, events = self._engine, self._events
        found = 0
        lines = engine.lines(code.co_filename)
        if lines and engine.concerns(code, lines):
            found |= events.LINE
        if any(id(code) in stack for stack in self._stacks.values()):
            found |= events.LINE | events.JUMP
        for watch in list(engine.watches.values()):
            if id(code) in watch.codes:
                found |= events.LINE
            if code is watch.frame.f_code:
                found |= events.PY_RETURN
        return int(found)

    # ---- a thread that is to stop

    def halt(self, ident: int) -> None:
        """Enable events on the thread's stack and in its calls; for a moment everywhere: the stack may be changing."""
        engine = self._engine
        other_thread = ident != threading.get_ident()
        with engine.lock:
            self._wide = other_thread
            self._stacks[ident] = self._stack(ident)
            engine.refresh()
        until = time.monotonic() + _WINDOW_SECONDS
        while other_thread and ident in engine.halts and time.monotonic() < until:
            time.sleep(_STEP_SECONDS)
        with engine.lock:
            if self._wide and self._tool >= 0:
                self._wide = False
                if ident in engine.halts:
                    self._stacks[ident] = self._stack(ident)
                self.refresh()

    def _stack(self, ident: int) -> dict[int, CodeType]:
        frames = [frame for frame in thread_states.stack_of(ident) if not thread_states.is_passed(frame)]
        return {id(frame.f_code): frame.f_code for frame in frames}

    def unhalt(self, idents: list[int]) -> None:
        for ident in idents:
            self._stacks.pop(ident, None)
        if not self._engine.halts:
            self._wide = False

    def go_on(self, frame: FrameType | None, before: Any) -> Any:
        sys.settrace(before)
        clean(list(thread_states.stack(frame)))

    # ---- events, in the threads of the job

    def _started(self, code: CodeType, offset: int) -> Any:
        engine = self._engine
        if engine.halts:
            ident = threading.get_ident()
            stack = self._stacks.get(ident)
            if stack is None and id(code) in self._met:
                return None
            if not engine.here:
                return self._abandoned()
            with engine.lock:
                self._met.add(id(code))
                if stack is not None and not thread_states.is_passed(sys._getframe(1)):
                    stack[id(code)] = code
                self._mark(code)
            return None
        if engine.lines(code.co_filename) or id(code) in self._codes:
            if not engine.here:
                return self._abandoned()
            with engine.lock:
                self._mark(code)
        return self._python.DISABLE

    def _abandoned(self) -> Any:
        """In a forked child, if nothing has called ``abandon`` yet."""
        self.abandon()
        return self._python.DISABLE

    def abandon(self) -> None:
        """In a forked child: stop. The parent may have been in ``_begin`` or ``stop``, so Python tells the tool id."""
        for tool in _TOOL_IDS:
            if self._python.get_tool(tool) == _NAME:
                self._tool = tool
                self.stop()

    def _thrown(self, code: CodeType, offset: int, error: BaseException) -> None:
        self._started(code, offset)

    def _line(self, code: CodeType, line: int) -> Any:
        engine, ident = self._engine, threading.get_ident()
        if ident in engine.events.inside:
            return None
        if not engine.here:
            return self._abandoned()
        return None if engine.events.line(sys._getframe(1), ident) else self._python.DISABLE

    def _jumped(self, code: CodeType, offset: int, destination: int) -> None:
        """A loop within one line causes no line event: stop at its jump."""
        engine, ident = self._engine, threading.get_ident()
        if ident in engine.halts and destination < offset and ident not in engine.events.inside and engine.here:
            engine.events.halted(sys._getframe(1), ident)

    def _returned(self, code: CodeType, offset: int, value: Any) -> None:
        if self._engine.watches and self._engine.here:
            self._engine.events.returned(sys._getframe(1))

    def _unwound(self, code: CodeType, offset: int, error: BaseException) -> None:
        self._returned(code, offset, None)

    def _raised(self, code: CodeType, offset: int, error: BaseException) -> None:
        engine, ident = self._engine, threading.get_ident()
        if ident not in engine.events.inside and engine.catches and engine.here:
            engine.events.raised(sys._getframe(1), error, error.__traceback__, ident)
