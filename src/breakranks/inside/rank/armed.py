"""What stops a rank that runs: breakpoints, watches, caught exceptions and threads that are to halt; and probes.

pdb keeps its breakpoints as ever, in one table for all threads. How a thread comes back to one is ours, and costs next
to nothing in code that has none: events of ``sys.monitoring`` from 3.12 on, and a small trace function before it.
``disarm`` takes all of it off, from any thread, and leaves the process as it was.
"""

from __future__ import annotations

import bdb
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from breakranks.inside.rank import api, forks, places, threads
from breakranks.inside.rank.engine import BREAKS, Engine, clean, is_ours
from breakranks.inside.rank.engine import Refused as Refused
from breakranks.inside.rank.seat import Stop
from breakranks.inside.rank.watches import Probe

if TYPE_CHECKING:
    from breakranks.inside.rank.agent import Agent

_engine: Engine | None = None
_making = threading.Lock()


def engine(agent: Agent) -> Engine:
    global _engine
    with _making:
        if _engine is None or _engine.agent is not agent:
            _engine = Engine(agent)
            _engine.ended = lambda: tell(agent)
        return _engine


def present() -> Engine | None:
    return _engine


def halt(agent: Agent, ident: int, stop: Stop) -> str:
    """Stop a thread at its next line; why that cannot be, or nothing."""
    if ident not in sys._current_frames():
        return "that thread has ended, or is not in Python"
    try:
        engine(agent).halt(ident, stop)
    except (Refused, threads.Unreachable) as error:
        return str(error)
    return ""


def halted(agent: Agent) -> None:
    """The thread that asks has stopped, whatever for: it need not any more."""
    known = _engine
    if known is not None and known.agent is agent:
        known.unhalt(threading.get_ident())


def withdraw(agent: Agent) -> None:
    """No thread is to halt any more."""
    known = _engine
    if known is not None and known.agent is agent:
        known.unhalt(*list(known.halts))


def stops_again(agent: Agent) -> bool:
    """Whether a rank that goes on now may be stopped again by something that is armed."""
    known = _engine
    return known is not None and known.agent is agent and known.stops


def refresh(agent: Agent) -> str:
    """After a change of pdb's table; why it cannot be armed, or nothing."""
    if _engine is None and not BREAKS:
        return ""
    try:
        engine(agent).refresh()
    except (Refused, threads.Unreachable) as error:
        return str(error)
    return ""


def go_on(agent: Agent, frame: FrameType | None, before: Any = None) -> Any:
    """The thread that asks runs on, with what is armed and no more; what its trace function is to return."""
    return engine(agent).way.go_on(frame, before)


def passing(agent: Agent, frame: FrameType, event: str, argument: Any) -> None:
    """A thread that pdb steps is told of an event; up to 3.11 nobody else is."""
    known = _engine
    if known is not None and not known.idle and sys.version_info < (3, 12):
        known.way.passing(frame, event, argument)


def disarm(agent: Agent) -> None:
    """Everything off, in all threads, also those that are blocked."""
    known = engine(agent)
    with known.lock:
        known.off()
        unstep()
    _settle(known)
    if agent.seat.tracing:
        agent.loose()


def abandon(agent: Agent, frame: FrameType | None, displaced: Any) -> None:
    """In a forked child of the process that ``agent`` is of: nothing is armed, nothing is traced. No lock is taken.

    ``frame`` is that of the thread that runs, ``displaced`` the trace function that it had before it was stepped.
    """
    global _engine, _making
    known = _engine
    if known is not None and known.agent is agent:
        _engine, _making = None, threading.Lock()
        displaced = known.abandon() or displaced
    if is_ours(sys.gettrace()):
        sys.settrace(displaced)
    clean(list(threads.stack(frame)))


def _settle(known: Engine) -> None:
    """Up to 3.11 a frame is given its trace function after ours has returned: that may be just about to happen."""
    for _ in range(20 if sys.version_info < (3, 12) else 0):
        mine, stacks = threading.get_ident(), {}
        for ident, frame in threads.others().items():
            if ident != mine and ident not in known.inside:
                stacks[ident] = list(threads.stack(frame))
        about = any(threads.of_ours(frame) for stack in stacks.values() for frame in stack)
        for stack in stacks.values():
            clean(stack)
        if not about:
            return
        time.sleep(0.001)


def unstep() -> None:
    """Take the trace functions off with which pdb steps, from outside where that can be, else at their next event."""
    known = dict(api._debuggers)
    if any(pdb.has_stepped for pdb in known.values()):
        clean(threads.resting())  # pdb leaves its trace function there
        for pdb in known.values():
            pdb.has_stepped = pdb.stepping
    if not any(pdb.stepping for pdb in known.values()):
        return
    try:
        traced = threads.tracers()
        ours = {id(pdb.tracer) for pdb in known.values()}
        stepped = [ident for ident, tracer in traced.items() if tracer in ours]
        if sys.version_info < (3, 12):
            for ident in stepped:
                threads.set_trace(ident, None)
        elif len(stepped) == len(traced):
            threads.untrace_all()
        else:
            raise threads.Unreachable("somebody else traces too")
    except threads.Unreachable:
        for pdb in known.values():
            pdb.lost = pdb.stepping
        return
    for ident in stepped:
        clean(threads.stack_of(ident))
    for pdb in known.values():
        pdb.stepping = False


def tell(agent: Agent) -> None:
    """A rank that runs: whether it may be stopped again, if that has changed."""
    stops, seat = stops_again(agent), agent.seat
    if seat.stop is None and seat.tracing != stops:
        agent.loose()
        seat.tracing = stops
        agent.watch.publish()
        agent.wire.tell({"event": "state", **agent.state()})


def in_use() -> bool:
    """Whether a thread of the job is in code of ours because of an event."""
    return _engine is not None and bool(_engine.inside)


def command(agent: Agent, line: str) -> tuple[str, bool]:
    """Do a command for breakpoints, of pdb's or ours, while nothing is stopped: its text, and whether it failed."""
    with forks.Paused():
        from breakranks.inside.rank.clerk import Clerk

    return Clerk(agent).do(line)


def probe(
    agent: Agent,
    file: str,
    line: int,
    when: str,
    prints: list[str],
    limit: int,
    tell: Callable[[dict[str, Any]], None],
) -> int:
    """Tell what expressions are at a line, each time a thread comes there; its number. Raises Refused, NoPlace."""
    found = places.find(file)
    why = places.why_not(found, line)
    if why:
        raise places.NoPlace(why)
    try:
        condition = compile(when.strip(), "<when>", "eval") if when.strip() else None
        codes = [(one, compile(one.strip(), "<print>", "eval")) for one in prints]
    except SyntaxError as error:
        raise Refused(f"{error.msg}: {(error.text or '').strip()}") from None
    known = engine(agent)
    with known.lock:
        made = Probe(number(), found, line, condition, codes, limit, tell)
        known.probes.setdefault((found, line), []).append(made)
        try:
            known.refresh()
        except threads.Unreachable as error:
            known.drop_probe(made.number)
            raise Refused(str(error)) from None
    return made.number


def unprobe(agent: Agent, number: int) -> bool:
    return engine(agent).drop_probe(number)


def number() -> int:
    """The next of the numbers that breakpoints, watches and probes have in common."""
    table: Any = bdb.Breakpoint
    table.bpbynumber.append(None)
    table.next += 1
    return int(table.next) - 1
