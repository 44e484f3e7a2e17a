"""Events in the threads of the job: a thread reaches an armed line, is to stop, returns from a frame, or raises.

The backend (``monitoring_backend`` or ``settrace_backend``) reports them. Here it is decided whether the thread stops.
"""

from __future__ import annotations

import bdb
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import source_lines, thread_states
from breakranks.rank.breakpoint_table import BREAKS
from breakranks.rank.stop_state import StopInfo
from breakranks.rank.watchpoints import LineLogpoint, error_text, is_caught, is_new
from breakranks.rank_messages import SaidEvent
from breakranks.rankset import RankSet

if TYPE_CHECKING:
    from breakranks.rank.breakpoints import Breakpoints
    from breakranks.rank.rank_pdb import RankPdb

# What is armed at a line of a code object: breakpoints, logpoints, and whether a watchpoint is evaluated there.
ArmedLine = tuple[CodeType, list[Any], list[LineLogpoint], bool]


class TraceEvents:
    """``inside``: threads that run code of breakranks because of an event; their own events are ignored."""

    def __init__(self, armed: Breakpoints) -> None:
        self._armed = armed
        self.inside: set[int] = set()
        self._lines: dict[tuple[int, int], ArmedLine] = {}  # by id of the code and line
        self._conditions: dict[int, tuple[Any, CodeType]] = {}  # by number of the breakpoint

    def forget_lines(self) -> None:
        """Called when what is armed has changed."""
        self._lines.clear()

    def clear(self) -> None:
        """Called when everything is disarmed. Threads that are still ``inside`` leave by themselves."""
        self._conditions.clear()

    @contextmanager
    def within(self, ident: int) -> Iterator[None]:
        self.inside.add(ident)
        try:
            yield
        except Exception as error:
            self._failed(error)
        finally:
            self.inside.discard(ident)

    # ---- events

    def line(self, frame: FrameType, ident: int) -> bool:
        """A thread has reached a line. Return whether later events of this line are of interest."""
        try:
            return self._at_line(frame, ident)
        except Exception as error:
            self._failed(error)
            return True

    def _failed(self, error: Exception) -> None:
        """An error of breakranks must not be raised into the job."""
        if os.environ.get("BREAKRANKS_DEBUG", "") not in ("", "0"):
            sys.excepthook(type(error), error, error.__traceback__)

    def _at_line(self, frame: FrameType, ident: int) -> bool:
        armed = self._armed
        if ident in armed.halts:
            self.halted(frame, ident)
            return True
        code, line = frame.f_code, frame.f_lineno
        found = self._lines.get((id(code), line))
        if found is None or found[0] is not code:
            found = self._lines[id(code), line] = self._armed_line(code, line)
        _, breaks, probes, watched = found
        if not (breaks or probes or watched):
            return bool(armed.halts)
        self.inside.add(ident)
        try:
            if probes:
                self._probe(probes, frame)
            if not (watched and self._watch(frame, ident)) and breaks:
                self._break(breaks, frame, ident)
        finally:
            self.inside.discard(ident)
        return True

    def _armed_line(self, code: CodeType, line: int) -> ArmedLine:
        file = source_lines.canonic(code.co_filename)
        watched = any(id(code) in watch.codes for watch in list(self._armed.watches.values()))
        return code, self._breaks(file, line, code), list(self._armed.probes.get((file, line), ())), watched

    def halted(self, frame: FrameType, ident: int) -> None:
        """A thread that is to stop has reached a line."""
        if thread_states.is_passed(frame) or any(map(thread_states.of_ours, thread_states.stack(frame))):
            return
        with self.within(ident):
            stop = self._armed.halts.get(ident)
            self._armed.unhalt(ident)
            if stop is not None and self._armed.agent.stop_state.stop is None:
                self._stop(self._armed.agent.pdbs.mine(), frame, stop)

    def returned(self, frame: FrameType) -> None:
        """A frame has ended: delete its watchpoints, which cannot be evaluated any more."""
        for watch in list(self._armed.watches.values()):
            if watch.frame is frame and watch.number in self._armed.watches:
                self._armed.drop_watch(watch.number)
                text = f"watchpoint {watch.number} ({watch.source}) deleted: {frame.f_code.co_name} has returned\n"
                self._armed.tell()
                self._armed.agent.server.tell(SaidEvent(text=text))

    def raised(self, frame: FrameType, error: BaseException, trace: Any, ident: int) -> None:
        """An exception was raised in a frame."""
        if is_new(frame, trace) and is_caught(self._armed.catches, error) and not thread_states.of_ours(frame):
            with self.within(ident):
                if self._may_stop(frame):
                    self._stop(self._armed.agent.pdbs.mine(), frame, self._stop_info(f"raised {error_text(error)}"))

    # ---- stopping

    def _stop(self, pdb: RankPdb, frame: FrameType, stop: StopInfo, number: int = 0) -> None:
        if pdb.steps():
            pdb.break_in(frame, stop)  # the trace function that steps this thread gets this event next
            return
        pdb.stop_at(frame, stop, number)
        if not pdb.going:
            pdb.trace_from(frame)

    def _may_stop(self, frame: FrameType) -> bool:
        agent = self._armed.agent
        if agent.stop_state.sits() or (agent.coordination.off and not agent.watched):
            return False
        # Injected code does not stop, nor code of the job that breakranks calls.
        stack = list(thread_states.stack(frame))
        return not thread_states.is_injected(stack) and not any(map(thread_states.of_ours, stack))

    def _stop_info(self, reason: str) -> StopInfo:
        stoppers = RankSet([self._armed.agent.me.rank])
        return StopInfo(site="", count=0, role="prompt", stoppers=stoppers, reason=reason)

    # ---- breakpoints

    def _breaks(self, file: str, line: int, code: CodeType) -> list[Any]:
        """Return the breakpoints of a line, or of the function whose first line it is."""
        lines = BREAKS.get(file)
        if lines is None:
            return []
        found = []
        if line in lines:
            known = bdb.Breakpoint.bplist.get((file, line), ())
            found = [one for one in known if one.funcname in (None, code.co_name)]
        first = code.co_firstlineno
        if first in lines and first != line and line == source_lines.first_line(code):
            known = bdb.Breakpoint.bplist.get((file, first), ())
            found += [one for one in known if one.funcname == code.co_name]
        return found

    def _break(self, breaks: list[Any], frame: FrameType, ident: int) -> None:
        pdb = self._armed.agent.pdbs.of(ident)
        if pdb is not None and pdb.steps():
            return  # pdb checks breakpoints itself, with break_here
        due = self._due(breaks, frame)
        if due is not None and self._may_stop(frame):
            pdb = self._armed.agent.pdbs.mine()
            if due[0].temporary and "raised" not in due[1]:
                pdb.do_clear(str(due[0].number))
            self._stop(pdb, frame, self._stop_info(due[1]), due[0].number)

    def due(self, frame: FrameType) -> tuple[Any, str] | None:
        """Return the breakpoint that stops a thread here, and the reason to report."""
        code = frame.f_code
        return self._due(self._breaks(source_lines.canonic(code.co_filename), frame.f_lineno, code), frame)

    def _due(self, breaks: list[Any], frame: FrameType) -> tuple[Any, str] | None:
        for breakpoint in breaks:
            reason = self._effective(breakpoint, frame)
            if reason:
                return breakpoint, reason
        return None

    def _effective(self, breakpoint: Any, frame: FrameType) -> str:
        """As ``bdb.effective``: return why a breakpoint stops here, or an empty text."""
        if not breakpoint.enabled:
            return ""
        breakpoint.hits += 1
        if breakpoint.cond:
            try:
                if not eval(self._condition(breakpoint), frame.f_globals, frame.f_locals):
                    return ""
            except Exception as error:  # pdb stops as well where a condition raises
                return f"breakpoint {breakpoint.number}: its condition raised {error_text(error)}"
        if breakpoint.ignore > 0:
            breakpoint.ignore -= 1
            return ""
        return f"breakpoint {breakpoint.number}"

    def _condition(self, breakpoint: Any) -> CodeType:
        known = self._conditions.get(breakpoint.number)
        if known is None or known[0] is not breakpoint.cond:
            code = compile(breakpoint.cond.strip(), "<condition>", "eval")
            known = self._conditions[breakpoint.number] = (breakpoint.cond, code)
        return known[1]

    # ---- logpoints and watchpoints

    def _probe(self, probes: list[LineLogpoint], frame: FrameType) -> None:
        for probe in list(probes):
            probe.hit(frame)
            if probe.through:
                self._armed.drop_probe(probe.number)

    def _watch(self, frame: FrameType, ident: int) -> bool:
        """Return whether a watched value has changed and the thread has stopped for it."""
        changes = []
        for watch in list(self._armed.watches.values()):
            if watch.thread == ident and id(frame.f_code) in watch.codes:
                change = watch.look()
                if change is not None:
                    changes.append(f"watchpoint {watch.number}: {watch.source}: {change[0]} → {change[1]}")
        if not changes or not self._may_stop(frame):
            return False
        self._stop(self._armed.agent.pdbs.mine(), frame, self._stop_info("; ".join(changes)))
        return True
