"""The lines of a file into which many processes print: as a rule tracebacks come one after the other, and are read so.

Where one begins in the middle of another one, all lines are kept until none is open, and are then taken apart.
"""

from __future__ import annotations

from collections.abc import Iterable

from breakranks.logs.log_events import LogLine, TracebackEvent
from breakranks.logs.traceback_lines import CHAIN_LINES, MARK, is_surely_exception
from breakranks.logs.traceback_untangle import untangled
from breakranks.logs.traceback_voice import QUIET_LINES, VoiceReader, may_begin

MAX_LINES = 400_000  # of mixed tracebacks
MAX_ORDERED_LINES = 20_000  # kept while no lines are mixed, in case they turn out to be
MAX_FOREIGN_LINES = 3_000  # other lines while an exception is still awaited


class SharedFileReader:
    """Reads lines of which nothing tells who wrote them."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lines: list[LogLine] = []
        self._ordered = VoiceReader(shared=True)
        self._events: list[TracebackEvent] = []  # of those lines, if they are in order
        self._mixed = False
        self._awaited = 0  # headers without an exception
        self._foreign = 0  # other lines since the last one of a traceback

    @property
    def open(self) -> bool:
        """Whether further lines may belong to what was read."""
        return bool(self._lines) or self._ordered.open

    def feed(self, line: LogLine) -> Iterable[TracebackEvent]:
        """Read a line. The tracebacks that are complete come back."""
        if not self._lines and not may_begin(line.text):
            return ()
        self._note(line)
        if not self._mixed:
            self._feed_ordered(line)
        if self._is_over():
            return self.finish()
        return ()

    def finish(self) -> list[TracebackEvent]:
        """What was read. Tracebacks without their end are incomplete."""
        events = untangled(self._lines) if self._mixed else [*self._events, *self._ordered.finish()]
        self._reset()
        return events

    def _note(self, line: LogLine) -> None:
        text = line.text
        if MARK in text:
            self._awaited += text.count(MARK)
        elif text[:1] not in (" ", "\t", "") and is_surely_exception(text):
            self._awaited -= 1
        elif text in CHAIN_LINES or text.startswith(("    ", '  File "', "  |")):
            pass
        else:
            self._foreign += 1
            if self._foreign <= QUIET_LINES:
                self._lines.append(line)
            return
        self._foreign = 0
        self._lines.append(line)

    def _feed_ordered(self, line: LogLine) -> None:
        text = line.text
        self._events += self._ordered.feed(line)
        if self._ordered.conflict or text.count(MARK) > 1 or text.count('  File "') > 1:
            self._mixed = True

    def _is_over(self) -> bool:
        if self._foreign > (QUIET_LINES if self._awaited <= 0 else MAX_FOREIGN_LINES):
            return True
        if self._mixed:
            return len(self._lines) >= MAX_LINES
        return len(self._lines) >= MAX_ORDERED_LINES and not self._ordered.open
