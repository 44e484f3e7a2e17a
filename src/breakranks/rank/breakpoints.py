"""What is armed in a rank that runs: breakpoints, watchpoints, caught exceptions, logpoints, threads that are to stop.

Breakpoints are in pdb's own table, one for all threads. pdb's trace function is not used to reach them: a backend
reports the events of a thread at almost no cost in code where nothing is armed, with ``sys.monitoring`` from 3.12 on
and with a small trace function before. ``trace_events`` handles the events. ``disarm`` removes everything, from any
thread, and leaves the process as it was.
"""

from __future__ import annotations

import bdb
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import source_lines, thread_states
from breakranks.rank.breakpoint_table import BREAKS, SHARED, BreakpointRefused, clean, is_ours, next_number
from breakranks.rank.monitoring_backend import MonitoringBackend
from breakranks.rank.settrace_backend import SettraceBackend
from breakranks.rank.stop_state import StopInfo
from breakranks.rank.trace_events import TraceEvents
from breakranks.rank.watchpoints import LineLogpoint, Watchpoint
from breakranks.rank_messages import ProbeEvent, StateEvent
from breakranks.rankset import RankSet

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent

Place = tuple[str, int]


class Breakpoints:
    """Everything that is armed in this process. ``halts``: the threads that are to stop at their next line."""

    def __init__(self, agent: RankAgent) -> None:
        self.agent = agent
        self.lock = threading.RLock()
        self.halts: dict[int, StopInfo] = {}
        self.probes: dict[Place, list[LineLogpoint]] = {}
        self.watches: dict[int, Watchpoint] = {}
        self.catches: dict[str, None] = {}
        self.generation = 0  # how often everything was disarmed: steps that began before are void
        self.events = TraceEvents(self)
        self._places: dict[str, frozenset[int]] = {}
        self._armed: Any = None
        self._abandoned = False  # in a forked child
        self._first = bdb.Breakpoint.next
        self.way: SettraceBackend | MonitoringBackend = (
            MonitoringBackend(self) if sys.version_info >= (3, 12) else SettraceBackend(self)
        )

    # ---- what is armed

    @property
    def here(self) -> bool:
        """False in a forked child: it has no agent that could resume a stopped thread."""
        return self.agent.here

    @property
    def stops(self) -> bool:
        """Whether something is armed that could stop a thread again."""
        return bool(BREAKS or self.watches or self.catches)

    @property
    def idle(self) -> bool:
        return not (self.stops or self.probes or self.halts)

    def lines(self, file: str) -> frozenset[int]:
        """Return the armed lines of a file; ``file`` as in a code object."""
        return self._places.get(source_lines.canonic(file), frozenset())

    def concerns(self, code: CodeType, lines: frozenset[int]) -> frozenset[int]:
        """Return those of these lines that this code has. A breakpoint on a function counts as its first line."""
        found = lines.intersection(source_lines.lines_in(code))
        if code.co_firstlineno in lines and self._by_name(code):
            found |= {source_lines.first_line(code)}
        return found

    def _by_name(self, code: CodeType) -> bool:
        known = bdb.Breakpoint.bplist.get((source_lines.canonic(code.co_filename), code.co_firstlineno)) or ()
        return any(breakpoint.funcname == code.co_name for breakpoint in known)

    # ---- arming

    def refresh(self) -> None:
        """Arm what the tables contain. Called after every change; does nothing if nothing has changed."""
        with self.lock:
            wanted = self._wanted()
            if wanted == self._armed or (self.idle and self._armed is None):
                return
            found: dict[str, set[int]] = {}
            for file, line in {*((file, line) for file, line, _ in wanted[0]), *wanted[1]}:
                found.setdefault(file, set()).add(line)
            self.events.forget_lines()
            self._places = {file: frozenset(lines) for file, lines in found.items()}
            try:
                self.way.refresh()
            finally:
                self._armed = wanted if not self.idle else None

    def _wanted(self) -> tuple[Any, ...]:
        breaks = {
            (*place, breakpoint.number)
            for place, known in list(bdb.Breakpoint.bplist.items())
            if place[1] in BREAKS.get(place[0], ())
            for breakpoint in known
            if breakpoint.enabled
        }
        numbers = {probe.number for known in self.probes.values() for probe in known}
        return breaks, set(self.probes), numbers, set(self.watches), set(self.catches), set(self.halts)

    def rearm(self) -> str:
        """Arm after a change of pdb's table. Return why that is not possible, or an empty text."""
        try:
            self.refresh()
        except (BreakpointRefused, thread_states.ThreadUnreachable) as error:
            return str(error)
        return ""

    def go_on(self, frame: FrameType | None, before: Any = None) -> Any:
        """Let the calling thread run, with only what is armed. Return what its trace function must return."""
        return self.way.go_on(frame, before)

    def passing(self, frame: FrameType, event: str, argument: Any) -> None:
        """Report an event of a thread that pdb steps: up to 3.11 only pdb's trace function gets it."""
        if not self.idle:
            self.way.passing(frame, event, argument)

    def tell(self) -> None:
        """Tell the consoles whether this running rank may stop again, if that has changed."""
        self.agent.pdbs.prepare()  # imports in this thread, so that the stopping thread need not
        state = self.agent.stop_state
        if state.stop is None and state.tracing != self.stops:
            self.agent.loose()
            state.tracing = self.stops
            self.agent.coordination.publish()
            self.agent.server.tell(self.agent.report(StateEvent))

    # ---- threads that are to stop

    def stop_soon(self, role: str, stoppers: RankSet, reason: str, thread: int = 0) -> str:
        """Stop a thread, by default the main one, at its next line. Return why that is not possible, or nothing.

        A thread may be in C for long before it reaches a line: until then ``withdraw`` cancels the stop.
        """
        self.agent.pdbs.prepare()  # imports in this thread, so that the stopping thread need not
        state = self.agent.stop_state
        if state.stop is not None or state.pending:
            return ""
        ident = thread or thread_states.main()
        if ident not in sys._current_frames():
            return "that thread has ended, or is not in Python"
        try:
            self._halt(ident, StopInfo(site="", count=0, role=role, stoppers=stoppers, reason=reason or "interrupt"))
        except (BreakpointRefused, thread_states.ThreadUnreachable) as error:
            return str(error)
        return ""

    def withdraw(self) -> None:
        """Cancel the stop of every thread that has not stopped yet."""
        self.unhalt(*list(self.halts))

    def halted_here(self) -> None:
        """Cancel the stop of the calling thread, which has stopped, for whatever reason."""
        self.unhalt(threading.get_ident())

    def _halt(self, ident: int, stop: StopInfo) -> None:
        self.halts[ident] = stop
        self.agent.stop_state.pending = True
        try:
            self.way.halt(ident)
        except BaseException:
            self.unhalt(ident)
            raise

    def unhalt(self, *idents: int) -> None:
        """Cancel the stop of these threads, or note that they have stopped."""
        with self.lock:
            gone = [ident for ident in idents if self.halts.pop(ident, None) is not None]
            if gone:
                self.agent.stop_state.pending = bool(self.halts)
                self.way.unhalt(gone)
                self.refresh()

    # ---- logpoints and watchpoints

    def probe(
        self,
        file: str,
        line: int,
        when: str,
        prints: list[str],
        limit: int,
        tell: Callable[[ProbeEvent], None],
    ) -> int:
        """Report the values of expressions each time a thread reaches a line. Return the number of the logpoint.

        Raises BreakpointRefused, NoSuchLine.
        """
        path = source_lines.find(file)
        why = source_lines.why_not(path, line)
        if why:
            raise source_lines.NoSuchLine(why)
        try:
            condition = compile(when.strip(), "<when>", "eval") if when.strip() else None
            codes = [(source, compile(source.strip(), "<print>", "eval")) for source in prints]
        except SyntaxError as error:
            raise BreakpointRefused(f"{error.msg}: {(error.text or '').strip()}") from None
        with self.lock:
            probe = LineLogpoint(
                number=next_number(), file=path, line=line, when=condition, prints=codes, limit=limit, tell=tell
            )
            self.probes.setdefault((path, line), []).append(probe)
            try:
                self.refresh()
            except thread_states.ThreadUnreachable as error:
                self.drop_probe(probe.number)
                raise BreakpointRefused(str(error)) from None
        return probe.number

    def drop_probe(self, number: int) -> bool:
        """Delete a logpoint. Return whether there was one of that number."""
        with self.lock:
            for place, known in list(self.probes.items()):
                for probe in known:
                    if probe.number == number:
                        known.remove(probe)
                        if not known:
                            del self.probes[place]
                        self.refresh()
                        return True
        return False

    def drop_watch(self, number: int) -> bool:
        """Delete a watchpoint. Return whether there was one of that number."""
        with self.lock:
            watch = self.watches.pop(number, None)
            self.refresh()
            return watch is not None

    # ---- disarming

    def disarm(self) -> None:
        """Remove everything, in all threads, including blocked ones."""
        with self.lock:
            self.off()
            self._unstep()
        self._settle()
        if self.agent.stop_state.tracing:
            self.agent.loose()

    def off(self) -> None:
        """Disarm everything; pdb may still step threads."""
        with self.lock:
            self.generation += 1
            self.unhalt(*list(self.halts))
            self.probes.clear()
            self.watches.clear()
            self.catches.clear()
            self.events.clear()
            self._clear_breaks()
            self.refresh()
            self.way.stop()

    def abandon(self, frame: FrameType | None, displaced: Any) -> None:
        """In a forked child: disarm everything and stop tracing, without taking a lock.

        ``frame`` is that of the running thread, ``displaced`` the trace function that it had before it was stepped.
        """
        if not self._abandoned:
            self._abandoned = True
            displaced = self._abandon_all() or displaced
        if is_ours(sys.gettrace()):
            sys.settrace(displaced)
        clean(list(thread_states.stack(frame)))

    def _abandon_all(self) -> Any:
        """As ``off``, without a lock. Return the trace function of the job that was displaced."""
        self.lock = threading.RLock()
        self.generation += 1
        for table in (self.halts, self.probes, self.watches, self.catches, self.events.inside):
            table.clear()
        self.events.clear()
        displaced = self.way.abandon()
        self._clear_breaks()
        return displaced

    def _clear_breaks(self) -> None:
        """Delete the breakpoints of breakranks. Reuse their numbers, if no later number is in use."""
        table: Any = bdb.Breakpoint
        for breakpoint in table.bpbynumber:
            if breakpoint is not None and breakpoint.line in BREAKS.get(breakpoint.file, ()):
                breakpoint.deleteMe()
        BREAKS.clear()
        for shared in SHARED.values():
            shared.clear()
        if not any(table.bpbynumber[self._first :]):
            del table.bpbynumber[self._first :]
            table.next = min(table.next, self._first)
        self._first = table.next

    def _unstep(self) -> None:
        """Remove the trace functions with which pdb steps, from outside where possible, else at their next event."""
        known = self.agent.pdbs.all()
        if any(pdb.has_stepped for pdb in known):
            clean(thread_states.resting())  # pdb leaves its trace function in suspended generators
            for pdb in known:
                pdb.has_stepped = pdb.stepping
        if not any(pdb.stepping for pdb in known):
            return
        try:
            traced = thread_states.tracers()
            tracers = {id(pdb.tracer) for pdb in known}
            stepped = [ident for ident, tracer in traced.items() if tracer in tracers]
            if sys.version_info < (3, 12):
                for ident in stepped:
                    thread_states.set_trace(ident, None)
            elif len(stepped) == len(traced):
                thread_states.untrace_all()
            else:
                raise thread_states.ThreadUnreachable("another tracer is active")
        except thread_states.ThreadUnreachable:
            for pdb in known:
                pdb.lost = pdb.stepping
            return
        for ident in stepped:
            clean(thread_states.stack_of(ident))
        for pdb in known:
            if pdb.stepping:
                pdb.stepping = False
                pdb.release_step()

    def _settle(self) -> None:
        """Wait until no thread returns from a trace function: up to 3.11 its frame gets one only after that."""
        for _ in range(20 if sys.version_info < (3, 12) else 0):
            own, stacks = threading.get_ident(), {}
            for ident, frame in thread_states.others().items():
                if ident != own and ident not in self.events.inside:
                    stacks[ident] = list(thread_states.stack(frame))
            returning = any(thread_states.of_ours(frame) for stack in stacks.values() for frame in stack)
            for stack in stacks.values():
                clean(stack)
            if not returning:
                return
            time.sleep(0.001)
