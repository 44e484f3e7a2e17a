"""Which start of the job an event belongs to, in a log of all ranks. torchrun prints a restart at level INFO only,
which is off by default: then the next report of a failed process, or the final summary, tells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from breakranks.logs.log_events import Event, ExitEvent, RestartEvent, TracebackEvent

_MAX_HELD = 20_000
# The agent of one host prints this line once for each start that failed.
_FAILED = re.compile(r"E\d{4} [\d:.]+ (\d+) .*failed \(exitcode: ")
_FINAL = "ChildFailedError"


class AttemptCounter:
    """Gives events the number of their start. Events behind a failed start are held back until it is known whether
    they belong to it: ``finish`` ends that."""

    def __init__(self) -> None:
        self._number = 0
        self._held: list[Event] = []
        self._end = -1  # offset of the line that reported the end of the start; -1: it goes on
        self._ends: list[tuple[int, int]] = []  # of earlier starts: the offset and the number
        self._run_start = -1  # what stands before is of an earlier run
        self._failed: Counter[str] = Counter()  # by pid of the agent
        self._reported: dict[int, int] = {}  # rank to pid, of the final summary
        self._new_run = False

    def take_new_run(self) -> bool:
        """Whether a new run of the job has begun with the event that was yielded last."""
        found, self._new_run = self._new_run, False
        return found

    def feed(self, event: Event) -> Iterator[Event]:
        """Yield events with their numbers, in order."""
        if event.line.position <= self._run_start:
            return
        if agent := _FAILED.search(event.line.text) if isinstance(event, ExitEvent) else None:
            yield from self._start_failed(event, agent[1])
        elif isinstance(event, RestartEvent):
            yield from self._release(self._number)
            yield _numbered(event, self._number)
            self._ends.append((event.line.position, self._number))
            self._number, self._end = max(self._number + 1, event.attempt), -1
        elif isinstance(event, TracebackEvent) and event.raised.type.endswith(_FINAL) and not self._reported:
            yield from self._release(self._number)
            yield _numbered(event, self._number)
        elif isinstance(event, ExitEvent) and event.rank >= 0 and event.reporter == "torchrun" and event.pid > 0:
            yield from self._summary(event)
        elif 0 <= self._end < event.line.position and len(self._held) < _MAX_HELD:
            self._held.append(event)
        else:
            yield _numbered(event, self._number_at(event.line.position))

    def finish(self) -> Iterator[Event]:
        """Yield what is held back: without a final summary, it is of another start."""
        if self._reported and any(event.line.rank in self._reported for event in self._held):
            yield from self._restarted_log()
        yield from self._release(self._number if self._reported else self._number + 1)

    def _start_failed(self, event: Event, agent: str) -> Iterator[Event]:
        if not self._reported:
            if self._failed[agent] > self._number:
                self._ends.append((self._end, self._number))
                self._number = self._failed[agent]
            self._failed[agent] += 1
            yield from self._release(self._number)
            self._end = event.line.position
            yield _numbered(event, self._number)
        else:
            self._held.append(event)

    def _summary(self, event: ExitEvent) -> Iterator[Event]:
        """A rank that an earlier summary reported, with another pid, is of a new run of the job."""
        if self._reported.get(event.rank, event.pid) != event.pid:
            yield from self._restarted_log()
        yield from self._release(self._number)
        self._reported[event.rank] = event.pid
        self._end = max(self._end, event.line.position)
        yield _numbered(event, self._number)

    def _restarted_log(self) -> Iterator[Event]:
        held, self._held = self._held, []
        self._run_start = self._end
        self._number, self._end, self._new_run = 0, -1, True
        self._ends.clear()
        self._failed.clear()
        self._reported.clear()
        for event in held:
            yield from self.feed(event)

    def _number_at(self, position: int) -> int:
        """Return the start that an offset is of: a traceback may be reported long after it was read."""
        return next((number for end, number in self._ends if position <= end), self._number)

    def _release(self, number: int) -> Iterator[Event]:
        held, self._held = self._held, []
        for event in held:
            yield _numbered(event, number)


def _numbered(event: Event, number: int) -> Event:
    return replace(event, line=event.line._replace(attempt=number)) if event.line.attempt != number else event
