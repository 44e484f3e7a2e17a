"""Gather the events of a job by attempt and fold them: equal tracebacks of many ranks are one group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from breakranks.logs.exception_rows import ExceptionRow, classify_exception
from breakranks.logs.known_row import TIMEOUT
from breakranks.logs.log_events import (
    CASCADE,
    INITIATING,
    TEARDOWN,
    DumpEvent,
    Event,
    ExitEvent,
    KnownEvent,
    LogLine,
    Raised,
    RestartEvent,
    TimeoutEvent,
    TracebackEvent,
)
from breakranks.rankset import RankSet
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.model import Frame

MAX_GROUPS = 2000  # of each kind, in one attempt; later ones are counted only
# What differs between the copies of one message: numbers, addresses, quoted temporary names.
_LAUNCHER_FILE = re.compile(r"/torch/distributed/(?:run|launch|launcher|elastic)\b|/bin/[\w.-]+\Z|^<frozen runpy>")
_CHILD_FAILED = re.compile(r"torch\.distributed\.elastic\.multiprocessing\.errors\.Ch?i?l?d?F?")
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)*")


class LocalRank(NamedTuple):
    """A local rank and the log that names it. ``shared``: the log has lines of several ranks."""

    source: str
    number: int
    shared: bool = False


@dataclass(slots=True, kw_only=True)
class ExceptionGroup:
    """Equal tracebacks. ``unnamed`` copies are in lines that name no rank. ``handled``: the ranks printed more after
    them, so they went on. ``first`` is the first line of the earliest copy."""

    raised: Raised
    row: ExceptionRow | None
    first: LogLine
    ranks: set[int] = field(default_factory=set)
    local_ranks: set[LocalRank] = field(default_factory=set)
    unnamed: int = 0
    copies: int = 0
    thread: str = ""
    handled: bool = False
    times: dict[int, float] = field(default_factory=dict)

    @property
    def role(self) -> str:
        if is_launcher_report(self.raised):
            return TEARDOWN
        return self.row.role if self.row is not None else INITIATING

    @property
    def rank_set(self) -> RankSet:
        return RankSet(self.ranks)

    @property
    def count(self) -> int:
        """How many ranks raised it; where ranks are not named, how many copies there are."""
        return len(self.ranks) + self.unnamed

    @property
    def time(self) -> float:
        """The earliest known time, 0 if there is none."""
        return min((moment for moment in self.times.values() if moment), default=self.first.time)


@dataclass(slots=True, kw_only=True)
class KnownGroup:
    """Lines of one row of the table of known lines."""

    key: str
    role: str
    first: LogLine
    values: dict[str, str]
    ranks: set[int] = field(default_factory=set)
    count: int = 0


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What was read of one start of the job. ``more`` counts groups that were not kept."""

    number: int
    exceptions: dict[object, ExceptionGroup] = field(default_factory=dict)
    known: dict[object, KnownGroup] = field(default_factory=dict)
    exits: list[ExitEvent] = field(default_factory=list)
    timeouts: list[TimeoutEvent] = field(default_factory=list)
    regular_ends: set[int] = field(default_factory=set)  # ranks whose Python ended in the regular way
    rank_of_pid: dict[int, int] = field(default_factory=dict)  # of the host on which the launcher runs
    more: int = 0

    @property
    def ranks(self) -> set[int]:
        """The ranks that any event names."""
        found = {rank for group in self.exceptions.values() for rank in group.ranks}
        found |= {rank for group in self.known.values() for rank in group.ranks}
        found |= {event.rank for event in self.exits} | {event.rank for event in self.timeouts}
        return found - {-1}


class FailureCollector:
    """Folds events as they come, in bounded memory."""

    def __init__(self) -> None:
        self.attempts: dict[int, Attempt] = {}
        self.restarts: dict[int, RestartEvent] = {}
        self.dumps: dict[str, DumpEvent] = {}
        self.ranks: set[int] = set()  # seen in any line, or in the name of a file
        self.local_ranks: set[int] = set()
        self.merged = False  # a log has lines of all ranks
        self.earlier_runs = 0

    def add(self, event: Event) -> None:
        attempt = self.attempts.setdefault(event.line.attempt, Attempt(number=event.line.attempt))
        match event:
            case TracebackEvent():
                self._add_traceback(attempt, event)
            case ExitEvent():
                if len(attempt.exits) < MAX_GROUPS * 50:
                    attempt.exits.append(event)
            case TimeoutEvent():
                if len(attempt.timeouts) < MAX_GROUPS * 50:
                    attempt.timeouts.append(event)
            case KnownEvent():
                self._add_known(attempt, event)
            case RestartEvent():
                self.restarts.setdefault(event.attempt, event)
            case DumpEvent():
                if len(self.dumps) < MAX_GROUPS:
                    self.dumps.setdefault(event.path, event)

    def add_regular_end(self, rank: int, attempt: int) -> None:
        self.attempts.setdefault(attempt, Attempt(number=attempt)).regular_ends.add(rank)

    def add_process(self, pid: int, rank: int, attempt: int) -> None:
        self.attempts.setdefault(attempt, Attempt(number=attempt)).rank_of_pid[pid] = rank

    def new_run(self) -> None:
        """Forget everything: a later run of the job begins in the same log."""
        self.earlier_runs += 1
        self.attempts.clear()
        self.restarts.clear()
        self.dumps.clear()

    def _add_traceback(self, attempt: Attempt, event: TracebackEvent) -> None:
        if event.thread == "ignored":  # Python prints it while a process ends
            return
        key = exception_key(event.raised)
        group = attempt.exceptions.get(key)
        if group is None:
            if len(attempt.exceptions) >= MAX_GROUPS:
                attempt.more += 1
                return
            group = ExceptionGroup(
                raised=event.raised,
                row=telling_row(event.raised),
                first=event.line,
                thread=event.thread,
                handled=event.handled,
            )
            attempt.exceptions[key] = group
        line = event.line
        group.copies += event.count
        group.handled = group.handled and event.handled
        if line.rank >= 0:
            group.ranks.add(line.rank)
            group.times.setdefault(line.rank, line.time)
        elif line.local_rank >= 0:
            group.local_ranks.add(LocalRank(line.source, line.local_rank, shared=line.voice != line.source))
        else:
            group.unnamed += event.count

    def _add_known(self, attempt: Attempt, event: KnownEvent) -> None:
        group = attempt.known.get(event.key)
        if group is None:
            group = KnownGroup(key=event.key, role=event.role, first=event.line, values=event.values)
            attempt.known[event.key] = group
        group.count += 1
        rank = event.rank if event.rank >= 0 else event.line.rank
        if rank >= 0:
            group.ranks.add(rank)


def is_launcher_report(raised: Raised) -> bool:
    """Whether it is the traceback with which torchrun reports that a rank failed, perhaps cut off."""
    if raised.complete and raised.type and not _CHILD_FAILED.search(raised.type):
        return False
    return is_in_launcher(raised)


def is_in_launcher(raised: Raised) -> bool:
    """Whether torchrun itself raised it: no frame is of a rank's program."""
    elastic = any("/torch/distributed/" in frame.file for frame in raised.frames)
    return elastic and all(_LAUNCHER_FILE.search(frame.file) for frame in raised.frames)


def exception_key(raised: Raised) -> object:
    """Return what equal tracebacks share: types, places, and messages without their numbers."""
    places = tuple((frame.function, frame.file, frame.line) for frame in raised.frames)
    cause = exception_key(raised.cause) if raised.cause is not None else None
    members = tuple(exception_key(member) for member in raised.members)
    return raised.type, _VARIES.sub("#", raised.message[:400]), places, cause, members


def origin(raised: Raised) -> Raised:
    """Return the exception that others were raised ``from``. One that was only being handled is not the reason."""
    while raised.cause is not None and raised.cause.type and raised.relation == "from":
        raised = raised.cause
    if raised.members and all(exception_key(member) == exception_key(raised.members[0]) for member in raised.members):
        return origin(raised.members[0])
    return raised


def chain(raised: Raised) -> Iterator[Raised]:
    """Yield an exception, and those before it in its chain."""
    found: Raised | None = raised
    while found is not None:
        yield found
        found = found.cause


def telling_row(raised: Raised) -> ExceptionRow | None:
    """Return the row that says what a whole chain is. What a program raises because a peer was gone, or a call timed
    out, follows from that, whatever it is."""
    rows = [row for part in chain(raised) if (row := classify_exception(part)) is not None]
    effects = [row for row in rows if row.role == CASCADE or row.kind == TIMEOUT]
    return effects[-1] if effects else classify_exception(origin(raised))


def place_of(raised: Raised) -> Frame | None:
    """Return the innermost frame of the user's code, or of any code."""
    return innermost_own(raised.frames)
