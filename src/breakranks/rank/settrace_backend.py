"""The backend of breakpoints up to Python 3.11: a trace function in every thread.

Python calls it for every function call. In a file where nothing is armed, one dictionary lookup disables the line
events of the function.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dis import opmap
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import thread_states
from breakranks.rank.breakpoint_table import BreakpointRefused, clean, is_ours

if TYPE_CHECKING:
    from breakranks.rank.breakpoints import Breakpoints

_RESUMED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_YIELDS = frozenset(opmap[name] for name in ("YIELD_VALUE", "YIELD_FROM", "SEND", "RESUME") if name in opmap)
_MAX_CODES = 10_000

Local = Callable[[FrameType, str, Any], Any]


class _Files(dict[str, "frozenset[int] | None"]):
    """By file, as in code objects: the armed lines, or None if no event of the file is needed."""

    def __init__(self, engine: Breakpoints) -> None:
        super().__init__()
        self._engine = engine

    def __missing__(self, file: str) -> frozenset[int] | None:
        engine = self._engine
        if engine.idle:
            return frozenset()  # not None: a thread that still gets call events must stop tracing
        lines: frozenset[int] | None = engine.lines(file)
        if not lines and not engine.catches and not engine.watches:
            lines = None
        self[file] = lines
        return lines


class SettraceBackend:
    """The backend up to 3.11. Every method except the events is called with the lock of ``engine`` held."""

    def __init__(self, engine: Breakpoints) -> None:
        self._engine = engine
        self._files = _Files(engine)
        # By id of the code, which this keeps alive: its local trace function, and whether that needs line events.
        self._locals: dict[int, tuple[CodeType, Local | None, bool]] = {}
        self._on = False
        self._hook: Any = None  # the previous threading.settrace function
        self._displaced: dict[int, Any] = {}  # by thread that was stopped, the trace function of another tool
        self.foreign: list[str] = []  # threads that another tool traces: they are left alone
        self._global = self._made()
        self._halting = self._made_halting()

    # ---- arming

    def refresh(self) -> None:
        engine = self._engine
        self._files.clear()
        self._locals.clear()
        if engine.idle:
            self.stop()
            return
        if not self._on and not self._only_halts():
            self._on = True
            self._hook = threading.gettrace()
            if self._hook is None:
                threading.settrace(self._global)
        self.foreign = []
        if self._on:
            traced = thread_states.tracers()
            for ident, frame in thread_states.others().items():
                self._reach(ident, frame, traced)

    def _only_halts(self) -> bool:
        return not (self._engine.stops or self._engine.probes)

    def _reach(self, ident: int, frame: FrameType, traced: dict[int, int]) -> None:
        engine, stop_state = self._engine, self._engine.agent.stop_state
        stopped = stop_state.stop is not None and stop_state.thread == ident
        if stopped or ident in engine.events.inside or ident in engine.halts or self._steps(ident, traced):
            return  # it gets its trace function when it resumes
        if traced.get(ident, id(self._global)) != id(self._global):  # _global is one object for all time
            self.foreign.append(thread_states.name_of(ident))
            return
        if ident not in traced:
            thread_states.set_trace(ident, self._global)
        self._dress(frame)

    def _steps(self, ident: int, traced: dict[int, int]) -> bool:
        """Whether pdb steps a thread."""
        known = self._engine.agent.pdbs.of(ident)
        return known is not None and traced.get(ident) == id(known.tracer)

    def _dress(self, frame: FrameType | None) -> None:
        """Set the local trace function of each running frame that has something armed."""
        for running in thread_states.stack(frame):
            local = None if thread_states.of_ours(running) else self._local(running)
            if local is not None and (running.f_trace is None or is_ours(running.f_trace)):
                running.f_trace = local
            elif local is None:
                clean([running])

    def stop(self) -> None:
        if self._on:
            self._on = False
            if threading.gettrace() is self._global:
                threading.settrace(self._hook)
            traced = thread_states.tracers()
            for ident, frame in thread_states.current_frames().items():
                if traced.get(ident) == id(self._global):
                    thread_states.set_trace(ident, self._displaced.pop(ident, None))
                if not self._steps(ident, traced):
                    clean(list(thread_states.stack(frame)))
        self._displaced.clear()

    def go_on(self, frame: FrameType | None, before: Any) -> Any:
        with self._engine.lock:
            if self._on:
                if before is not None:
                    self._displaced[threading.get_ident()] = before
                self._dress(frame)
                sys.settrace(self._global)
            else:
                clean(list(thread_states.stack(frame)))
                sys.settrace(before)
        return frame.f_trace if frame is not None else None

    # ---- a thread that is to stop

    def halt(self, ident: int) -> None:
        with self._engine.lock:
            if ident not in self._engine.halts:
                return  # it has stopped for another reason
            traced = thread_states.tracers()
            known = traced.get(ident)
            if (
                known is not None
                and known not in (id(self._global), id(self._halting))
                and not self._steps(ident, traced)
            ):
                raise BreakpointRefused(f"{thread_states.name_of(ident)} is traced by another debugger, or by coverage")
            thread_states.set_trace(ident, self._halting)
            for frame in thread_states.stack_of(ident):
                if not thread_states.of_ours(frame) and (frame.f_trace is None or is_ours(frame.f_trace)):
                    frame.f_trace = self._halting
                    frame.f_trace_lines = True

    def unhalt(self, idents: list[int]) -> None:
        traced = thread_states.tracers()
        for ident in idents:
            if traced.get(ident) == id(self._halting):
                thread_states.set_trace(ident, self._global if self._on else None)
            # Of the calling thread, the frames of breakranks too: they are called from a line that was to be stopped.
            own = ident == threading.get_ident()
            frames = list(thread_states.stack(sys._getframe(1))) if own else thread_states.stack_of(ident)
            clean([frame for frame in frames if frame.f_trace is self._halting])
            if self._on and frames:
                self._dress(frames[0])

    def _made_halting(self) -> Local:
        engine = self._engine

        def halting(frame: FrameType, event: str, argument: Any) -> Any:
            ident = threading.get_ident()
            if not engine.here:
                return self._abandon(frame)
            if ident not in engine.halts:
                return self.go_on(frame, None)
            if event == "return" and frame.f_code.co_flags & _RESUMED:
                clean([frame])  # it may be suspended for long; its resumption is a call event
                return None
            if event != "line":
                return halting
            engine.events.halted(frame, ident)
            return frame.f_trace

        return halting

    # ---- events, in the threads of the job

    def _made(self) -> Local:
        files, known, told = self._files, self._locals, self._called

        def tracer(frame: FrameType, event: str, argument: Any) -> Any:
            code = frame.f_code
            if files[code.co_filename] is None:
                return None
            found = known.get(id(code))
            if found is not None and found[0] is code and frame.f_trace_lines is found[2]:
                return found[1]
            return told(frame)

        return tracer

    def _called(self, frame: FrameType) -> Any:
        if not self._engine.here:
            return self._abandon(frame)
        if not self._on:  # a thread that began while the backend stopped
            sys.settrace(None)
            return None
        return None if thread_states.of_ours(frame) else self._local(frame)

    def _local(self, frame: FrameType) -> Local | None:
        """Return the local trace function of a frame."""
        code = frame.f_code
        known = self._locals.get(id(code))
        if known is None or known[0] is not code:
            if len(self._locals) > _MAX_CODES:
                self._locals.clear()
            local = self._made_local(code)
            lines = local is None or not self._engine.catches or self._has_lines(code)
            known = self._locals[id(code)] = (code, local, lines)
        if known[1] is not None and frame.f_trace_lines != known[2]:
            frame.f_trace_lines = known[2]
        return known[1]

    def _has_lines(self, code: CodeType) -> bool:
        return bool(self._engine.concerns(code, self._engine.lines(code.co_filename))) or self._is_watched(code)

    def _is_watched(self, code: CodeType) -> bool:
        return any(id(code) in watch.codes for watch in list(self._engine.watches.values()))

    def _made_local(self, code: CodeType) -> Local | None:
        engine = self._engine
        lines = engine.concerns(code, engine.lines(code.co_filename))
        watched = self._is_watched(code)
        if not lines and not watched and not engine.catches:
            return None
        resumed = code.co_flags & _RESUMED

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                if not watched and frame.f_lineno not in lines:
                    return local
                return self._line(frame)
            if event == "exception" and engine.catches:
                return self._raised(frame, argument)
            if event == "return":
                return self._returned(frame, resumed)
            return local

        return local

    def passing(self, frame: FrameType, event: str, argument: Any) -> None:
        """Handle an event of a thread that pdb steps; pdb checks breakpoints itself."""
        if event == "line" and self._has_lines(frame.f_code):
            self._engine.events.line(frame, threading.get_ident())
        elif event == "exception" and self._engine.catches:
            self._raised(frame, argument)
        elif event == "return" and self._engine.watches:
            self._ended(frame)

    def _line(self, frame: FrameType) -> Any:
        engine = self._engine
        if not engine.here:
            return self._abandon(frame)
        engine.events.line(frame, threading.get_ident())
        return frame.f_trace

    def _raised(self, frame: FrameType, argument: Any) -> Any:
        _, error, trace = argument
        if not self._engine.here:
            return self._abandon(frame)
        if isinstance(error, BaseException):  # else it ends a loop and has no exception object yet
            self._engine.events.raised(frame, error, trace, threading.get_ident())
        return frame.f_trace

    def _returned(self, frame: FrameType, resumed: int) -> Any:
        if resumed:
            clean([frame])  # it may be suspended for long; its resumption is a call event
        if self._engine.watches and self._engine.here:
            self._ended(frame)
        return None

    def _ended(self, frame: FrameType) -> None:
        suspended = frame.f_code.co_flags & _RESUMED and frame.f_code.co_code[frame.f_lasti] in _YIELDS
        if not suspended:
            self._engine.events.returned(frame)

    def _abandon(self, frame: FrameType) -> Any:
        """In a forked child, if nothing has called ``abandon`` yet."""
        sys.settrace(self.abandon())
        clean(list(thread_states.stack(frame)))

    def abandon(self) -> Any:
        """In a forked child: stop tracing. Return the previous trace function of the running thread."""
        self._on = False
        self._files.clear()
        self._locals.clear()
        if threading.gettrace() is self._global:
            threading.settrace(self._hook)
        return self._displaced.pop(threading.get_ident(), None)
