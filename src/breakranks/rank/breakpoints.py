"""What stops a rank that runs: breakpoints, watches, caught exceptions and threads that are to halt; and probes.

pdb keeps its breakpoints as ever, in one table for all threads. How a thread comes back to one is ours, and costs next
to nothing in code that has none: events of ``sys.monitoring`` from 3.12 on, and a small trace function before it.
``disarm`` takes all of it off, from any thread, and leaves the process as it was.
"""

from __future__ import annotations

import bdb
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import source_lines, thread_states
from breakranks.rank.breakpoint_table import BREAKS, SHARED, BreakpointRefused, clean, is_ours, next_number
from breakranks.rank.monitoring_backend import MonitoringBackend
from breakranks.rank.settrace_backend import SettraceBackend
from breakranks.rank.stop_state import StopInfo
from breakranks.rank.watchpoints import LineProbe, Watchpoint, is_caught, is_new, said
from breakranks.rankset import RankSet

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent
    from breakranks.rank.rank_pdb import RankPdb

Place = tuple[str, int]
Spot = tuple[
    CodeType, list[Any], list[LineProbe], bool
]  # what a line of a code object has: breakpoints, probes, watches


class Breakpoints:
    """``inside``: threads that are in code of ours because of an event, and whose events are ours."""

    def __init__(self, agent: RankAgent) -> None:
        self.agent = agent
        self.lock = threading.RLock()
        self.halts: dict[int, StopInfo] = {}
        self.probes: dict[Place, list[LineProbe]] = {}
        self.watches: dict[int, Watchpoint] = {}
        self.catches: dict[str, None] = {}
        self.inside: set[int] = set()
        self.generation = 0  # how often everything was taken off: what was begun before is over
        self._places: dict[str, frozenset[int]] = {}
        self._spots: dict[tuple[int, int], Spot] = {}
        self._conditions: dict[int, tuple[Any, CodeType]] = {}
        self._armed: Any = None
        self._abandoned = False  # in a forked child
        self._first = bdb.Breakpoint.next
        self.way: SettraceBackend | MonitoringBackend = (
            MonitoringBackend(self) if sys.version_info >= (3, 12) else SettraceBackend(self)
        )

    # ---- what there is

    @property
    def here(self) -> bool:
        """False in a forked child: nobody is there who could let it go on."""
        return self.agent.here

    @property
    def stops(self) -> bool:
        """Whether something is armed that would stop a thread again."""
        return bool(BREAKS or self.watches or self.catches)

    @property
    def idle(self) -> bool:
        return not (self.stops or self.probes or self.halts)

    def lines(self, file: str) -> frozenset[int]:
        """The lines of a file that are of interest; ``file`` as a code object has it."""
        return self._places.get(source_lines.canonic(file), frozenset())

    def concerns(self, code: CodeType, lines: frozenset[int]) -> frozenset[int]:
        """Which of these lines this code has; of a function that has a breakpoint by name, its first."""
        found = lines.intersection(source_lines.lines_in(code))
        if code.co_firstlineno in lines and self._by_name(code):
            found |= {source_lines.first_line(code)}
        return found

    def _by_name(self, code: CodeType) -> bool:
        known = bdb.Breakpoint.bplist.get((source_lines.canonic(code.co_filename), code.co_firstlineno)) or ()
        return any(one.funcname == code.co_name for one in known)

    # ---- arming

    def refresh(self) -> None:
        """Make what is armed what is wanted; called after every change, and does nothing where there was none."""
        with self.lock:
            wanted = self._wanted()
            if wanted == self._armed or (self.idle and self._armed is None):
                return
            found: dict[str, set[int]] = {}
            for file, line in {*((file, line) for file, line, _ in wanted[0]), *wanted[1]}:
                found.setdefault(file, set()).add(line)
            self._spots.clear()
            self._places = {file: frozenset(lines) for file, lines in found.items()}
            try:
                self.way.refresh()
            finally:
                self._armed = wanted if not self.idle else None

    def _wanted(self) -> tuple[Any, ...]:
        breaks = {
            (*place, one.number)
            for place, known in list(bdb.Breakpoint.bplist.items())
            if place[1] in BREAKS.get(place[0], ())
            for one in known
            if one.enabled
        }
        numbers = {one.number for known in self.probes.values() for one in known}
        return breaks, set(self.probes), numbers, set(self.watches), set(self.catches), set(self.halts)

    def stop_soon(self, role: str, stoppers: RankSet, reason: str, thread: int = 0) -> str:
        """Stop a thread, the main one if none is named, at the next line that it comes to; why that cannot be, or
        nothing.

        It may be long in C before it comes to one: ``withdraw`` takes it back until then.
        """
        self.agent.pdbs.prepare()  # in this thread, so that the job's need not import it when it comes to its stop
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
        """No thread is to be stopped any more that has not been yet."""
        self.unhalt(*list(self.halts))

    def halted_here(self) -> None:
        """The thread that asks has stopped, whatever for: it need not any more."""
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
        """These threads are not to halt, or have halted."""
        with self.lock:
            gone = [ident for ident in idents if self.halts.pop(ident, None) is not None]
            if gone:
                self.agent.stop_state.pending = bool(self.halts)
                self.way.unhalt(gone)
                self.refresh()

    def rearm(self) -> str:
        """After a change of pdb's table; why it cannot be armed, or nothing."""
        try:
            self.refresh()
        except (BreakpointRefused, thread_states.ThreadUnreachable) as error:
            return str(error)
        return ""

    def disarm(self) -> None:
        """Everything off, in all threads, also those that are blocked."""
        with self.lock:
            self.off()
            self._unstep()
        self._settle()
        if self.agent.stop_state.tracing:
            self.agent.loose()

    def abandon(self, frame: FrameType | None, displaced: Any) -> None:
        """In a forked child: nothing is armed, nothing is traced. No lock is taken.

        ``frame`` is that of the thread that runs, ``displaced`` the trace function that it had before it was stepped.
        """
        if not self._abandoned:
            self._abandoned = True
            displaced = self._abandon_all() or displaced
        if is_ours(sys.gettrace()):
            sys.settrace(displaced)
        clean(list(thread_states.stack(frame)))

    def _settle(self) -> None:
        """Up to 3.11 a frame is given its trace function after ours has returned: that may be just about to happen."""
        for _ in range(20 if sys.version_info < (3, 12) else 0):
            mine, stacks = threading.get_ident(), {}
            for ident, frame in thread_states.others().items():
                if ident != mine and ident not in self.inside:
                    stacks[ident] = list(thread_states.stack(frame))
            about = any(thread_states.of_ours(frame) for stack in stacks.values() for frame in stack)
            for stack in stacks.values():
                clean(stack)
            if not about:
                return
            time.sleep(0.001)

    def _unstep(self) -> None:
        """Take off the trace functions with which pdb steps, from outside where possible, else at their next event."""
        known = self.agent.pdbs.all()
        if any(pdb.has_stepped for pdb in known):
            clean(thread_states.resting())  # pdb leaves its trace function there
            for pdb in known:
                pdb.has_stepped = pdb.stepping
        if not any(pdb.stepping for pdb in known):
            return
        try:
            traced = thread_states.tracers()
            ours = {id(pdb.tracer) for pdb in known}
            stepped = [ident for ident, tracer in traced.items() if tracer in ours]
            if sys.version_info < (3, 12):
                for ident in stepped:
                    thread_states.set_trace(ident, None)
            elif len(stepped) == len(traced):
                thread_states.untrace_all()
            else:
                raise thread_states.ThreadUnreachable("somebody else traces too")
        except thread_states.ThreadUnreachable:
            for pdb in known:
                pdb.lost = pdb.stepping
            return
        for ident in stepped:
            clean(thread_states.stack_of(ident))
        for pdb in known:
            pdb.stepping = False

    def go_on(self, frame: FrameType | None, before: Any = None) -> Any:
        """The thread that asks runs on, with what is armed and no more; what its trace function is to return."""
        return self.way.go_on(frame, before)

    def passing(self, frame: FrameType, event: str, argument: Any) -> None:
        """A thread that pdb steps is told of an event; up to 3.11 nobody else is."""
        if not self.idle:
            self.way.passing(frame, event, argument)

    def tell(self) -> None:
        """A rank that runs: whether it may be stopped again, if that has changed."""
        self.agent.pdbs.prepare()  # in this thread, so that the job's need not import it when it comes to its stop
        state = self.agent.stop_state
        if state.stop is None and state.tracing != self.stops:
            self.agent.loose()
            state.tracing = self.stops
            self.agent.watch.publish()
            self.agent.server.tell({"event": "state", **self.agent.state()})

    def off(self) -> None:
        """As if nothing had ever been armed."""
        with self.lock:
            self.generation += 1
            self.unhalt(*list(self.halts))
            self.probes.clear()
            self.watches.clear()
            self.catches.clear()
            self._conditions.clear()
            self._clear_breaks()
            self.refresh()
            self.way.stop()

    def _abandon_all(self) -> Any:
        """As ``off``, without a lock. The trace function of the job's that ours has displaced."""
        self.lock = threading.RLock()
        self.generation += 1
        for armed in (self.halts, self.probes, self.watches, self.catches, self._conditions, self.inside):
            armed.clear()
        displaced = self.way.abandon()
        self._clear_breaks()
        return displaced

    def _clear_breaks(self) -> None:
        """Those of ours; where the numbers after them are nobody's, these are given back too."""
        table: Any = bdb.Breakpoint
        for one in table.bpbynumber:
            if one is not None and one.line in BREAKS.get(one.file, ()):
                one.deleteMe()
        BREAKS.clear()
        for shared in SHARED.values():
            shared.clear()
        if not any(table.bpbynumber[self._first :]):
            del table.bpbynumber[self._first :]
            table.next = min(table.next, self._first)
        self._first = table.next

    # ---- in the threads of the job

    @contextmanager
    def within(self, ident: int) -> Iterator[None]:
        self.inside.add(ident)
        try:
            yield
        except Exception as error:
            self._failed(error)
        finally:
            self.inside.discard(ident)

    def line(self, frame: FrameType, ident: int) -> bool:
        """A thread has come to a line; whether such a line is of interest again."""
        try:
            return self._at_line(frame, ident)
        except Exception as error:
            self._failed(error)
            return True

    def _failed(self, error: Exception) -> None:
        """Whatever goes wrong here is no exception of the job's."""
        if os.environ.get("BREAKRANKS_DEBUG", "") not in ("", "0"):
            sys.excepthook(type(error), error, error.__traceback__)

    def _at_line(self, frame: FrameType, ident: int) -> bool:
        if ident in self.halts:
            self.halted(frame, ident)
            return True
        code, line = frame.f_code, frame.f_lineno
        spot = self._spots.get((id(code), line))
        if spot is None or spot[0] is not code:
            spot = self._spots[id(code), line] = self._look(code, line)
        _, breaks, probes, watched = spot
        if not (breaks or probes or watched):
            return bool(self.halts)
        self.inside.add(ident)
        try:
            if probes:
                self._probe(probes, frame)
            if not (watched and self._watch(frame, ident)) and breaks:
                self._break(breaks, frame, ident)
        finally:
            self.inside.discard(ident)
        return True

    def _look(self, code: CodeType, line: int) -> Spot:
        file = source_lines.canonic(code.co_filename)
        watched = any(id(code) in one.codes for one in list(self.watches.values()))
        return code, self._breaks(file, line, code), list(self.probes.get((file, line), ())), watched

    def halted(self, frame: FrameType, ident: int) -> None:
        """A thread that is to halt has come to a line."""
        if thread_states.is_passed(frame) or any(map(thread_states.of_ours, thread_states.stack(frame))):
            return
        with self.within(ident):
            stop = self.halts.get(ident)
            self.unhalt(ident)
            if stop is not None and self.agent.stop_state.stop is None:
                self._stop(self.agent.pdbs.mine(), frame, stop)

    def _stop(self, pdb: RankPdb, frame: FrameType, stop: StopInfo, number: int = 0) -> None:
        if pdb.steps():
            pdb.break_in(frame, stop)  # the trace function that steps it is told of this very event next
            return
        pdb.stop_at(frame, stop, number)
        if not pdb.going:
            pdb.trace_from(frame)

    def _may_stop(self, frame: FrameType) -> bool:
        if self.agent.stop_state.sits() or (self.agent.watch.off and not self.agent.watched):
            return False
        return not any(
            map(thread_states.of_ours, thread_states.stack(frame))
        )  # what we call ourselves is not the job's

    def _made(self, reason: str) -> StopInfo:
        mine = RankSet([self.agent.me.rank])
        return StopInfo(site="", count=0, role="prompt", stoppers=mine, reason=reason)

    # ---- breakpoints

    def _breaks(self, file: str, line: int, code: CodeType) -> list[Any]:
        """Those of a line, or of the function whose first one it is."""
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
        known = self.agent.pdbs.of(ident)
        if known is not None and known.steps():
            return  # pdb itself asks for them
        due = self._due(breaks, frame)
        if due is not None and self._may_stop(frame):
            pdb = self.agent.pdbs.mine()
            if due[0].temporary and "raised" not in due[1]:
                pdb.do_clear(str(due[0].number))
            self._stop(pdb, frame, self._made(due[1]), due[0].number)

    def due(self, frame: FrameType) -> tuple[Any, str] | None:
        """The breakpoint that stops a thread here, and how that is said."""
        code = frame.f_code
        return self._due(self._breaks(source_lines.canonic(code.co_filename), frame.f_lineno, code), frame)

    def _due(self, breaks: list[Any], frame: FrameType) -> tuple[Any, str] | None:
        for one in breaks:
            reason = self._effective(one, frame)
            if reason:
                return one, reason
        return None

    def _effective(self, one: Any, frame: FrameType) -> str:
        """As ``bdb.effective``: why a breakpoint stops here, or nothing."""
        if not one.enabled:
            return ""
        one.hits += 1
        if one.cond:
            try:
                if not eval(self._condition(one), frame.f_globals, frame.f_locals):
                    return ""
            except Exception as error:  # pdb stops there too: the condition is wrong, and somebody is to know
                return f"breakpoint {one.number}: its condition raised {said(error)}"
        if one.ignore > 0:
            one.ignore -= 1
            return ""
        return f"breakpoint {one.number}"

    def _condition(self, one: Any) -> CodeType:
        known = self._conditions.get(one.number)
        if known is None or known[0] is not one.cond:
            known = self._conditions[one.number] = (one.cond, compile(one.cond.strip(), "<condition>", "eval"))
        return known[1]

    # ---- the others

    def probe(
        self,
        file: str,
        line: int,
        when: str,
        prints: list[str],
        limit: int,
        tell: Callable[[dict[str, Any]], None],
    ) -> int:
        """Tell what expressions are at a line, each time a thread comes there; its number.

        Raises BreakpointRefused, NoSuchLine.
        """
        found = source_lines.find(file)
        why = source_lines.why_not(found, line)
        if why:
            raise source_lines.NoSuchLine(why)
        try:
            condition = compile(when.strip(), "<when>", "eval") if when.strip() else None
            codes = [(one, compile(one.strip(), "<print>", "eval")) for one in prints]
        except SyntaxError as error:
            raise BreakpointRefused(f"{error.msg}: {(error.text or '').strip()}") from None
        with self.lock:
            made = LineProbe(
                number=next_number(), file=found, line=line, when=condition, prints=codes, limit=limit, tell=tell
            )
            self.probes.setdefault((found, line), []).append(made)
            try:
                self.refresh()
            except thread_states.ThreadUnreachable as error:
                self.drop_probe(made.number)
                raise BreakpointRefused(str(error)) from None
        return made.number

    def _probe(self, probes: list[LineProbe], frame: FrameType) -> None:
        for one in list(probes):
            one.hit(frame)
            if one.through:
                self.drop_probe(one.number)

    def drop_probe(self, number: int) -> bool:
        with self.lock:
            for place, known in list(self.probes.items()):
                for one in known:
                    if one.number == number:
                        known.remove(one)
                        if not known:
                            del self.probes[place]
                        self.refresh()
                        return True
        return False

    def _watch(self, frame: FrameType, ident: int) -> bool:
        """Whether a watched value was another, and the thread has stopped for it."""
        changes = []
        for one in list(self.watches.values()):
            if one.thread == ident and id(frame.f_code) in one.codes:
                change = one.look()
                if change is not None:
                    changes.append(f"watch {one.number}: {one.source}: {change[0]} → {change[1]}")
        if not changes or not self._may_stop(frame):
            return False
        self._stop(self.agent.pdbs.mine(), frame, self._made("; ".join(changes)))
        return True

    def returned(self, frame: FrameType) -> None:
        """A frame has ended: what was watched in it cannot be looked at any more."""
        for one in list(self.watches.values()):
            if one.frame is frame and one.number in self.watches:
                self.drop_watch(one.number)
                text = f"watch {one.number} ({one.source}) has ended: {frame.f_code.co_name} has returned\n"
                self.tell()
                self.agent.server.tell({"event": "said", "text": text})

    def drop_watch(self, number: int) -> bool:
        with self.lock:
            found = self.watches.pop(number, None)
            self.refresh()
            return found is not None

    def raised(self, frame: FrameType, error: BaseException, trace: Any, ident: int) -> None:
        """An exception was raised in a frame."""
        if is_new(frame, trace) and is_caught(self.catches, error) and not thread_states.of_ours(frame):
            with self.within(ident):
                if self._may_stop(frame):
                    self._stop(self.agent.pdbs.mine(), frame, self._made(f"raised {said(error)}"))
