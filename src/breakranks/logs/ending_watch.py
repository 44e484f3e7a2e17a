"""Whether a rank went on after a traceback: what it printed next tells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from breakranks.logs.log_events import Event, LogLine, TracebackEvent
from breakranks.logs.training_progress import last_step

_MAX_LINES = 200  # of all voices, after which a traceback counts as the end of its rank
_MAX_WATCHED = 10_000
# What a process prints on its way down, or what others print about it.
_AFTERMATH = re.compile(
    r"""\s*\Z|\s*[\[(]?[WEFI]\d{4}\ |terminate\ called|\s+what\(\):|Aborted|Segmentation|Killed|Terminated
    |Exception\ (?:ignored|raised)|\s|frame\ \#|(?:Original\ )?Traceback|During\ handling|The\ above\ exception
    |Fatal\ Python|Current\ thread|Thread\ 0x|Extension\ modules
    |wandb:|\*\*\*|Sending\ process|srun:|slurmstepd:|mpirun|-{5,}|={5,}|\[(?:rank|W|E|PG)
    |.*(?:[Ww]arning|WARN|ERROR|atchdog|destroy_process_group)
    |.*(?:resource_tracker|leaked|shutting\ down|Shutting\ down|cleanup|exiting|Exiting|exit\ code|exitcode)
    |.*core\ dumped
    |[\w.]*(?:Error|Exception|Exit|Interrupt)\b
    """,
    re.VERBOSE,
)


class _Held(NamedTuple):
    event: TracebackEvent
    since: int  # the number of the line at which it was complete


class EndingWatch:
    """Holds back the newest traceback of each voice until its voice prints something else, or nothing for long.

    Where lines name no rank, only a completed step tells that the rank went on, or that all others did.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}  # the oldest first
        self._lines = 0
        self._step = -1  # offset of the last step in a line that names no rank

    @property
    def open(self) -> bool:
        return bool(self._held)

    def feed(self, event: Event) -> Iterator[Event]:
        """Yield an event, unless it is a traceback: that one comes later."""
        if not isinstance(event, TracebackEvent):
            yield event
            return
        if not event.line.voice and event.last_position < self._step:  # it was taken apart from others only now
            yield replace(event, handled=True)
            return
        before = self._held.pop(event.line.voice, None)
        if before is not None:
            yield before.event
        self._held[event.line.voice] = _Held(event, self._lines)
        if len(self._held) > _MAX_WATCHED:
            yield self._held.pop(next(iter(self._held))).event

    def see(self, line: LogLine) -> Iterator[Event]:
        """Yield tracebacks after which a voice has printed an ordinary line, or nothing for long."""
        if not line.voice and _goes_on(line):
            self._step = line.position
        if not self._held:
            return
        self._lines += 1
        held = self._held.get(line.voice)
        if held is not None and line.position > held.event.last_position and _goes_on(line):
            del self._held[line.voice]
            yield replace(held.event, handled=True)
        limit = _MAX_LINES * max(1, len(self._held))
        while self._held and self._lines - next(iter(self._held.values())).since > limit:
            yield self._held.pop(next(iter(self._held))).event

    def finish(self) -> Iterator[Event]:
        """Yield the tracebacks that are still held back."""
        for held in self._held.values():
            yield held.event
        self._held.clear()

    def forget(self) -> None:
        self._held.clear()


def _goes_on(line: LogLine) -> bool:
    if not line.voice:
        return bool(last_step([line.text]))
    return _AFTERMATH.match(line.text) is None
