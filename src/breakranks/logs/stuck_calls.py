"""Which ranks did not enter the collective that timed out: from the numbers of watchdogs, and from who was silent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from breakranks.logs.crash_report import StuckCall
from breakranks.logs.failure_groups import ExceptionGroup, chain
from breakranks.logs.log_events import LogLine, TimeoutEvent
from breakranks.logs.watchdog_lines import timeout_of_exception, with_groups
from breakranks.rankset import RankSet

CERTAIN, LIKELY = "certain", "likely"
_TORCH = re.compile(r"torch/distributed/distributed_c10d\.py\Z")
_WORLD = ("", "0", "default_pg")


class FoundStuckCall(NamedTuple):
    """``absent`` are the ranks that did not enter the call; empty if the logs do not tell. ``ground``: how that is
    known, a key of ``show.wording.crash_wording``."""

    call: StuckCall
    absent: RankSet
    confidence: str
    ground: str
    line: LogLine


class _GroupState:
    """What the watchdogs of one process group reported."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.expired: dict[int, TimeoutEvent] = {}  # by rank: the call that timed out on it
        self.unnamed: list[TimeoutEvent] = []
        self.enqueued: dict[int, int] = {}
        self.completed: dict[int, int] = {}
        self.absent = RankSet()  # as a line names them

    def add(self, event: TimeoutEvent) -> None:
        self.absent |= RankSet.parse(event.absent)
        if event.last_enqueued >= 0 and event.rank >= 0:
            self.enqueued.setdefault(event.rank, event.last_enqueued)
        if event.last_completed >= 0 and event.rank >= 0:
            self.completed.setdefault(event.rank, event.last_completed)
        if not event.own or not (event.operation or event.sequence >= 0):
            return
        if event.rank < 0:
            self.unnamed.append(event)
        elif event.rank not in self.expired or not self.expired[event.rank].operation:
            self.expired[event.rank] = event

    @property
    def first(self) -> TimeoutEvent | None:
        events = [*self.expired.values(), *self.unnamed]
        return min(events, key=lambda e: (not e.operation, e.line.time, e.line.position), default=None)

    @property
    def sequence(self) -> int:
        """The number of the call: the lowest that timed out on any rank."""
        return min((event.sequence for event in self.expired.values() if event.sequence >= 0), default=-1)

    def behind(self) -> RankSet:
        """Return the ranks whose watchdogs say that they had not enqueued the call."""
        stuck = self.sequence
        return RankSet(rank for rank, number in self.enqueued.items() if number < stuck)

    def in_other_call(self) -> RankSet:
        """Return the ranks whose call with the same number is another operation than that of most ranks. Without
        numbers, the calls that timed out are compared."""
        by_operation: dict[str, set[int]] = {}
        for rank, event in self.expired.items():
            if event.operation and event.sequence == self.sequence:
                by_operation.setdefault(event.operation, set()).add(rank)
        if len(by_operation) < 2:
            return RankSet()
        most = max(by_operation.values(), key=len)
        return RankSet(rank for ranks in by_operation.values() if ranks is not most for rank in ranks)


def find_stuck_call(
    timeouts: Sequence[TimeoutEvent], waiting: Iterable[ExceptionGroup], ranks: RankSet
) -> FoundStuckCall | None:
    """Return the call that timed out first and the ranks that did not enter it. ``waiting`` are exceptions that report
    a timeout, ``ranks`` the ranks that are known to exist."""
    states: dict[str, _GroupState] = {}
    for event in (*_of_exceptions(waiting), *with_groups(timeouts)):
        name = "" if event.group in _WORLD or event.description == "default_pg" else event.group
        states.setdefault(name, _GroupState(name)).add(event)
    expired = [state for state in states.values() if state.first is not None]
    if not expired:
        return None
    expired_ranks = RankSet(rank for state in expired for rank in state.expired)
    found = [_of_group(state, ranks, expired_ranks) for state in expired]
    # A rank that did not enter one call may itself wait in another group: the root waits in none.
    roots = [call for call in found if call.absent and not call.absent & expired_ranks]
    return (roots or sorted(found, key=lambda call: not call.absent))[0]


def _of_exceptions(groups: Iterable[ExceptionGroup]) -> Iterable[TimeoutEvent]:
    for group in groups:
        told = (timeout_of_exception(part, group.first) for part in chain(group.raised))
        event = next((found for found in told if found is not None), None)
        if event is None:
            continue
        for rank in sorted(group.ranks) or [-1]:
            yield TimeoutEvent(
                line=group.first,
                rank=rank,
                operation=_called(group) or event.operation,
                sequence=event.sequence,
                group=event.group,
                description=event.description,
                timeout_ms=event.timeout_ms,
                absent=event.absent,
            )


def _called(group: ExceptionGroup) -> str:
    """Return the function of torch.distributed that the user's code called: gloo names its own parts of it."""
    frames = (frame for part in chain(group.raised) for frame in part.frames)
    return next((frame.function for frame in frames if _TORCH.search(frame.file)), "")


def _of_group(state: _GroupState, ranks: RankSet, expired: RankSet) -> FoundStuckCall:
    first = state.first
    assert first is not None
    waiting = RankSet(state.expired)
    absent, confidence, ground = _absent(state, waiting, ranks, expired)
    # The number that absent ranks stood at.
    enqueued = {state.enqueued[rank] for rank in absent if rank in state.enqueued}
    call = StuckCall(
        operation=first.operation,
        sequence=state.sequence,
        group=first.description if state.name and first.description else state.name,
        timeout_ms=first.timeout_ms,
        waiting=waiting - absent,
        last_enqueued=enqueued.pop() if len(enqueued) == 1 else -1,
    )
    return FoundStuckCall(call, absent, confidence, ground, first.line)


def _absent(state: _GroupState, waiting: RankSet, ranks: RankSet, expired: RankSet) -> tuple[RankSet, str, str]:
    if behind := state.behind():
        return behind, CERTAIN, "watchdog-numbers"
    odd = state.in_other_call()
    if odd and state.sequence >= 0:
        return odd, LIKELY, "other-call"
    if state.absent:
        return state.absent, CERTAIN, "named-absent"
    # The members of another group than that of all ranks are not in the logs.
    silent = ranks - waiting - expired if waiting and not state.name else RankSet()
    if silent or not odd:
        return silent, LIKELY, "silent-ranks" if silent else "absent-unknown"
    return odd, LIKELY, "other-operation"
