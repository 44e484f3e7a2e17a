"""Which failure came first: the rules, in order of how directly they show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from breakranks.logs.crash_report import (
    EXCEPTION,
    EXIT,
    LAUNCHER_FAILED,
    OUT_OF_MEMORY,
    SIGNAL,
    TIMEOUT,
    FirstCause,
)
from breakranks.logs.exception_rows import classify_exception
from breakranks.logs.exit_meanings import meaning, signal_of
from breakranks.logs.failure_groups import Attempt, ExceptionGroup, KnownGroup, is_in_launcher, origin, place_of
from breakranks.logs.known_lines import row_of
from breakranks.logs.known_row import IN_BOTH, IN_LINE
from breakranks.logs.log_events import CASCADE, INITIATING, NOTE, TEARDOWN, ExitEvent, LogLine, Raised
from breakranks.logs.signal_names import SIGNAL_NUMBERS, signal_number
from breakranks.logs.stuck_calls import find_stuck_call
from breakranks.rankset import RankSet

CERTAIN, LIKELY, GUESS = "certain", "likely", "guess"
FATAL = "Fatal Python error"
_PROGRAMMING = ("AssertionError", "AttributeError", "ImportError", "IndexError", "KeyError", "ModuleNotFoundError",
                "NameError", "NotImplementedError", "SyntaxError", "TypeError", "UnboundLocalError", "ValueError",
                "ZeroDivisionError")  # fmt: skip
_SIGABRT, _SIGKILL = SIGNAL_NUMBERS["SIGABRT"], SIGNAL_NUMBERS["SIGKILL"]
_ENDS = {SIGNAL_NUMBERS[name] for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE")}


@dataclass(frozen=True, slots=True, kw_only=True)
class InitiatingFailure:
    """A failure that may be the first cause. ``time`` is 0 where it is not known."""

    cause: FirstCause
    time: float
    line: LogLine

    @property
    def ranks(self) -> RankSet:
        return self.cause.ranks


class CauseFinder:
    """Finds the first cause of one attempt. ``ranks`` are those that are known to exist."""

    def __init__(self, attempt: Attempt, ranks: RankSet) -> None:
        self._attempt = attempt
        self._ranks = ranks
        self._groups = list(attempt.exceptions.values())
        self._exits = _by_rank(attempt.exits)
        self._rank_of_pid = {event.pid: event.rank for event in attempt.exits if event.pid > 0 and event.rank >= 0}

    def find(self) -> FirstCause | None:
        rules: tuple[Callable[[], FirstCause | None], ...] = (
            self._out_of_memory_kill,
            self._initiating,
            self._stuck,
            self._timeout,
            self._handled,
            self._plain_exit,
            self._cascade,
            self._launcher,
        )
        return next((cause for rule in rules if (cause := rule()) is not None), None)

    # ---- the kernel or the cluster says that memory ran out

    def _out_of_memory_kill(self) -> FirstCause | None:
        kills = [event for event in self._attempt.exits if event.reporter == "kernel"]
        lines = [group for group in self._attempt.known.values() if _is_of_kernel(group)]
        if not kills and not lines:
            return None
        named = RankSet(rank for event in kills if (rank := self._rank_of_pid.get(event.pid, event.rank)) >= 0)
        killed = RankSet(
            rank
            for rank, events in self._exits.items()
            if rank >= 0 and any(_signal(event) == _SIGKILL and event.role == INITIATING for event in events)
        )
        ranks = named or RankSet(rank for group in lines for rank in group.ranks) or killed
        if not ranks and not killed and any(self._counts(group) for group in self._groups):
            return None  # another process was killed
        first = kills[0].line if kills else lines[0].first
        return FirstCause(
            kind=OUT_OF_MEMORY,
            ranks=ranks,
            confidence=CERTAIN if named or (killed and len(killed) == 1) else LIKELY,
            signal=9,
            known=lines[0].key if lines else "",
            line=first,
            area="workload",
            restart="perhaps",
            grounds=("kernel-oom",),
        )

    # ---- exceptions, signals and known lines that no other failure explains

    def _initiating(self) -> FirstCause | None:
        found = [self._of_exception(group) for group in self._groups if self._counts(group)]
        raised = RankSet(rank for failure in found for rank in failure.ranks)
        found += [failure for failure in self._of_signals() if not failure.ranks <= raised or not failure.ranks]
        found += [self._of_line(group) for group in self._attempt.known.values() if self._line_counts(group)]
        return self._earliest(found)

    def _counts(self, group: ExceptionGroup) -> bool:
        """Whether an exception is initiating and ended its ranks."""
        if group.role != INITIATING or group.thread or _is_timeout(group):
            return False
        return self._died_of(group) if self._is_swallowed(group) else not group.handled

    def _died_of(self, group: ExceptionGroup) -> bool:
        """Whether ranks that printed more after an exception ended with a status all the same, and raised no other."""
        others = {rank for other in self._groups if other is not group for rank in other.ranks}
        return any(
            event.code > 0 and not _signal(event)
            for rank in group.ranks - others
            for event in self._exits.get(rank, ())
        )

    def _of_exception(self, group: ExceptionGroup) -> InitiatingFailure:
        raised = origin(group.raised)
        row = classify_exception(raised) or group.row
        kind = row.kind if row is not None else EXCEPTION
        ranks, grounds = (group.rank_set, ()) if group.ranks else self._inferred(group)
        if is_in_launcher(raised):
            kind = LAUNCHER_FAILED
        if number := _fatal_signal(raised):
            kind = SIGNAL
            number = next((s for rank in ranks for e in self._exits.get(rank, ()) if (s := _signal(e))), number)
        named = any(other.ranks for other in self._groups)
        cause = FirstCause(
            kind=kind,
            ranks=ranks,
            confidence=LIKELY if "rank-by-absence" in grounds and named else CERTAIN,
            raised=raised,
            where=place_of(raised) or place_of(group.raised),
            signal=number,
            known=row.key if row is not None else "",
            line=group.first,
            area=row.area if row is not None else "workload",
            restart=row.restart if row is not None else "no" if raised.type in _PROGRAMMING else "perhaps",
            grounds=grounds,
        )
        return InitiatingFailure(cause=cause, time=group.time, line=group.first)

    def _inferred(self, group: ExceptionGroup) -> tuple[RankSet, tuple[str, ...]]:
        """Return the ranks of a traceback whose lines name none, and why: those that ended with a status, if the
        numbers are equal, or all ranks of which no other exception is known."""
        others = [other for other in self._groups if other is group or not other.handled]
        unnamed = sum(other.unnamed for other in others if other.role != TEARDOWN)
        if not group.unnamed or group.unnamed != unnamed:
            return RankSet(), ()
        named = RankSet(rank for other in self._groups for rank in other.ranks)
        named_exits = {rank: events for rank, events in self._exits.items() if rank >= 0}
        if number := _fatal_signal(group.raised):
            crashed = RankSet(rank for rank, events in named_exits.items() if any(_signal(e) == number for e in events))
            if len(crashed) == group.unnamed:
                return crashed, ()
        ended = RankSet(
            rank for rank, events in named_exits.items() if any(e.code > 0 and not _signal(e) for e in events)
        )
        if len(ended - named) == unnamed:
            return ended - named, ("rank-by-exit",)
        if len(self._ranks - named) == unnamed:
            return self._ranks - named, ("rank-by-absence",)
        return RankSet(), ()

    def _of_signals(self) -> list[InitiatingFailure]:
        found: dict[int, list[ExitEvent]] = {}
        timed_out = {event.rank for event in self._attempt.timeouts}
        for events in self._exits.values():
            for event in events:
                number = _signal(event)
                if not number or number in _ENDS or event.role in (TEARDOWN, CASCADE):
                    continue
                if number == _SIGABRT and (event.rank in timed_out or (timed_out and event.rank < 0)):
                    continue  # its watchdog ended it
                found.setdefault(number, []).append(event)
        if len(found) > 1:  # ranks that do not end by SIGTERM are killed later
            found.pop(_SIGKILL, None)
        return [self._of_signal(number, events) for number, events in found.items()]

    def _of_signal(self, number: int, events: Sequence[ExitEvent]) -> InitiatingFailure:
        told = meaning(-number, number)
        first = min(events, key=lambda event: event.time or float("inf"))
        cause = FirstCause(
            kind=told.kind,
            ranks=RankSet(event.rank for event in events if event.rank >= 0),
            confidence=LIKELY if number == _SIGKILL else CERTAIN,
            signal=number,
            core_dumped=any(event.core_dumped for event in events),
            line=first.line,
            area=told.area,
            restart="perhaps",
            grounds=("killed-without-proof",) if number == _SIGKILL else (),
            host=first.host,
        )
        return InitiatingFailure(cause=cause, time=first.time, line=first.line)

    def _line_counts(self, group: KnownGroup) -> bool:
        """Whether a known line is a failure of its own. One that is also the text of an exception comes with that."""
        row = row_of(group.key)
        return group.role == INITIATING and row.kind not in (EXCEPTION, TIMEOUT) and row.where != IN_BOTH

    def _of_line(self, group: KnownGroup) -> InitiatingFailure:
        row = row_of(group.key)
        cause = FirstCause(
            kind=row.kind,
            ranks=RankSet(group.ranks),
            confidence=LIKELY,
            known=group.key,
            line=group.first,
            area=row.area,
            restart=row.restart,
            host=group.first.host,
        )
        return InitiatingFailure(cause=cause, time=group.first.time, line=group.first)

    def _earliest(self, found: list[InitiatingFailure]) -> FirstCause | None:
        """Return the first of several failures: by time, else by their order in one file, else that of fewest ranks."""
        if not found:
            return None
        found = _without_followers(found)
        if len(found) == 1:
            return found[0].cause
        if all(failure.time for failure in found):
            return _less_sure(min(found, key=lambda failure: failure.time), "first-by-time")
        if len({failure.line.source for failure in found}) == 1:
            return _less_sure(min(found, key=lambda failure: failure.line.position), "first-in-log")
        return _less_sure(min(found, key=lambda failure: len(failure.ranks) or 1 << 30), "fewest-ranks")

    # ---- a collective that some ranks did not enter

    def _stuck(self) -> FirstCause | None:
        waiting = [group for group in self._groups if _is_timeout(group)]
        found = find_stuck_call(self._attempt.timeouts, waiting, self._ranks)
        if found is None:
            return None
        stuck, absent, sure, ground, line = found
        swallowed = next((group for group in self._groups if self._is_swallowed_by(group, absent)), None)
        if swallowed is not None:
            failure = self._of_exception(swallowed).cause
            return FirstCause(
                kind=EXCEPTION,
                ranks=absent & swallowed.rank_set or absent,
                confidence=LIKELY,
                raised=failure.raised,
                where=failure.where,
                stuck=stuck,
                swallowed=True,
                line=failure.line,
                area="workload",
                restart=failure.restart,
                grounds=("swallowed",),
            )
        return FirstCause(
            kind=TIMEOUT,
            ranks=absent,
            confidence=sure if absent else GUESS,
            stuck=stuck,
            line=line,
            area="either",
            restart="perhaps",
            grounds=(ground,),
        )

    def _timeout(self) -> FirstCause | None:
        """A timeout of something else than a collective: a connection, a store."""
        found = [self._of_exception(group) for group in self._groups if _is_timeout(group) and not group.handled]
        cause = self._earliest(found)
        return None if cause is None else replace(cause, confidence=LIKELY)

    def _is_swallowed(self, group: ExceptionGroup) -> bool:
        """Whether the ranks went on after an exception: they printed more, or only a thread ended, or no rank that
        ended with an error is left for it."""
        if group.role != INITIATING or _is_timeout(group):
            return False
        if group.ranks or group.thread:
            return group.handled or bool(group.thread) or self._is_left_out(group)
        if not any(rank >= 0 for rank in self._exits):
            return group.handled
        return bool(group.unnamed) and not self._unexplained_ends

    def _is_left_out(self, group: ExceptionGroup) -> bool:
        """Whether the summary of torchrun, which lists every rank of its host that failed, has none of these ranks."""
        listed = [event for event in self._attempt.exits if event.reporter == "torchrun" and event.rank >= 0]
        complete = any(event.first for event in listed) and len({event.host for event in listed if event.host}) <= 1
        return complete and not group.ranks & {event.rank for event in self._attempt.exits}

    def _is_swallowed_by(self, group: ExceptionGroup, absent: RankSet) -> bool:
        if not absent or not self._is_swallowed(group):
            return False
        return bool(group.rank_set & absent) if group.ranks else group.unnamed == len(absent)

    @cached_property
    def _has_timeouts(self) -> bool:
        return bool(self._attempt.timeouts) or any(_is_timeout(group) for group in self._groups)

    @cached_property
    def _unexplained_ends(self) -> RankSet:
        """The ranks that ended with an error, and of which no exception or timeout is known. Where calls timed out,
        ranks that the launcher ended do not count: the rank that the others waited for is one of them."""
        ended = RankSet(
            rank
            for rank, events in self._exits.items()
            if rank >= 0 and any(_failed(event) and self._may_have_raised(event) for event in events)
        )
        explained = {rank for group in self._groups if not group.handled for rank in group.ranks}
        return ended - RankSet(explained | {event.rank for event in self._attempt.timeouts if event.rank >= 0})

    def _may_have_raised(self, event: ExitEvent) -> bool:
        return event.role == INITIATING or not self._has_timeouts

    # ---- what is left

    def _handled(self) -> FirstCause | None:
        """An exception that ended a thread, or after which a rank went on, if the job has failed all the same."""
        ended = [group for group in self._groups if not group.handled and not group.thread and group.role != TEARDOWN]
        ended = [group for group in ended if not self._is_swallowed(group)]
        threads = any(group.thread and not group.handled for group in self._groups)
        if not ended and not threads and not any(_failed(event) for event in self._attempt.exits):
            return None
        found = [self._of_exception(group) for group in self._groups if self._is_swallowed(group)]
        cause = self._earliest(found)
        if cause is None:
            return None
        sure = LIKELY if len(found) == 1 and ended and all(group.role == CASCADE for group in ended) else GUESS
        thread = any(group.thread for group in self._groups if group.first == cause.line)
        ground = "in-thread" if thread else "handled"
        return replace(cause, confidence=sure, swallowed=not thread, grounds=(*cause.grounds, ground))

    def _plain_exit(self) -> FirstCause | None:
        ended = [event for event in self._attempt.exits if event.code > 0 and not _signal(event)]
        explained = {rank for group in self._groups for rank in group.ranks}
        ended = [e for e in ended if e.rank not in explained and e.role == INITIATING and e.reporter != "launcher"]
        witnesses = any(group.role == CASCADE and group.ranks for group in self._groups)
        ended = [event for event in ended if event.rank >= 0 or not witnesses]  # a launcher's own status tells no rank
        unnamed = (group for group in self._groups if not group.ranks and group.role == INITIATING)
        if not ended or any(not group.handled for group in unnamed):
            return None
        # Without an effect on others there is no order among equal ends: all of them are the cause.
        alike = len({event.code for event in ended}) == 1 and not witnesses
        first = [event for event in ended if event.first and not alike] or ended
        earliest = min(first, key=lambda event: event.time or float("inf"))
        told = meaning(earliest.code, 0)
        return FirstCause(
            kind=told.kind if told.kind != EXCEPTION else EXIT,
            ranks=RankSet(event.rank for event in first if event.rank >= 0 and event.code == earliest.code),
            confidence=LIKELY if len({event.code for event in ended}) == 1 else GUESS,
            code=earliest.code,
            line=earliest.line,
            area=told.area,
            restart="perhaps",
            grounds=("no-traceback",),
            host=earliest.host,
        )

    def _cascade(self) -> FirstCause | None:
        """Only effects are in these logs: exceptions say that another rank was gone, or that the job was ended."""
        groups = [group for group in self._groups if group.role in (CASCADE, TEARDOWN) and not group.handled]
        witnesses = [group for group in groups if group.role == CASCADE]
        if not groups:
            return None
        group = min(witnesses or groups, key=lambda group: (group.time or float("inf"), group.first.position))
        failure = self._of_exception(group).cause
        if not witnesses:
            return replace(failure, confidence=LIKELY, grounds=("only-teardown",))
        silent = self._ranks - RankSet(rank for other in groups for rank in other.ranks)
        if silent and all(other.ranks for other in witnesses):
            ended = [event for rank in silent for event in self._exits.get(rank, ()) if event.first]
            number = _signal(ended[0]) if ended else 0
            return FirstCause(
                kind=SIGNAL if number else EXIT,
                signal=number,
                ranks=silent,
                confidence=LIKELY if len(silent) == 1 else GUESS,
                code=ended[0].code if ended and not number else -1,
                line=group.first,
                area="either",
                grounds=("signal-from-outside",) if number else ("gone-silently",),
            )
        return replace(failure, ranks=RankSet(), confidence=GUESS, grounds=("only-effects",))

    def _launcher(self) -> FirstCause | None:
        events = [e for e in self._attempt.exits if e.role != NOTE and (e.code > 0 or e.signal)]
        lines = [group for group in self._attempt.known.values() if group.role in (INITIATING, CASCADE)]
        if events:
            event = min(events, key=lambda e: (e.role == TEARDOWN, not e.first, e.time or float("inf")))
            told = meaning(event.code, event.signal)
            return FirstCause(
                kind=told.kind if _signal(event) else LAUNCHER_FAILED,
                ranks=RankSet([event.rank] if event.rank >= 0 else []),
                confidence=GUESS,
                code=event.code,
                signal=_signal(event),
                line=event.line,
                area=told.area,
                grounds=("only-launcher",),
                host=event.host,
            )
        return replace(self._of_line(lines[0]).cause, confidence=GUESS) if lines else None


def _without_followers(found: list[InitiatingFailure]) -> list[InitiatingFailure]:
    """Drop failures of ranks that had another failure before: of the same rank, the first one counts."""
    kept: list[InitiatingFailure] = []
    for failure in sorted(found, key=lambda f: (f.time or float("inf"), f.line.source, f.line.position)):
        earlier = RankSet(rank for other in kept for rank in other.ranks)
        if not failure.ranks or not failure.ranks <= earlier:
            kept.append(failure)
    return kept


def _is_timeout(group: ExceptionGroup) -> bool:
    return group.row is not None and group.row.kind == TIMEOUT


def _is_of_kernel(group: KnownGroup) -> bool:
    """Whether the kernel or a scheduler says that it killed a process for its memory."""
    row = row_of(group.key)
    return row.kind == OUT_OF_MEMORY and row.where == IN_LINE and group.role == INITIATING


def _less_sure(failure: InitiatingFailure, ground: str) -> FirstCause:
    cause = failure.cause
    return replace(cause, confidence=LIKELY if ground != "fewest-ranks" else GUESS, grounds=(*cause.grounds, ground))


def _by_rank(exits: Sequence[ExitEvent]) -> dict[int, list[ExitEvent]]:
    """Return exits by rank; those of local ranks on the only host are of the same number."""
    found: dict[int, list[ExitEvent]] = {}
    for event in exits:
        if event.reporter == "kernel":
            continue
        found.setdefault(event.rank, []).append(event)
    return found


def _failed(event: ExitEvent) -> bool:
    return event.code > 0 or bool(_signal(event))


def _signal(event: ExitEvent) -> int:
    return signal_of(event.code, event.signal)


def _fatal_signal(raised: Raised) -> int:
    """Return the signal that faulthandler reports, 0 for any other exception.

    >>> _fatal_signal(Raised(type="Fatal Python error", message="Segmentation fault"))
    11
    """
    if raised.type != FATAL:
        return 0
    return signal_number(raised.message.split("\n", 1)[0]) or _SIGABRT
