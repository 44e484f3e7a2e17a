"""Tracebacks out of the lines of logs, of writers that are known and of those that share a file without prefixes."""

from __future__ import annotations

from collections.abc import Iterable

from breakranks.logs.log_events import LogLine, TracebackEvent
from breakranks.logs.traceback_episode import SharedFileReader
from breakranks.logs.traceback_syntax import SyntaxErrorReader
from breakranks.logs.traceback_voice import VoiceReader, may_begin

MAX_VOICES = 4096  # with an open traceback each. The one that began first is given up for one more.


class TracebackReader:
    """Reads lines in the order of the file, and gives each traceback when it is complete."""

    def __init__(self) -> None:
        self._voices: dict[str, VoiceReader] = {}  # those with an open traceback
        self._shared = SharedFileReader()
        self._syntax_errors = SyntaxErrorReader()

    @property
    def open(self) -> bool:
        """Whether further lines may belong to a traceback. If not, only lines with one of ``TRIGGERS`` matter."""
        return bool(self._voices) or self._shared.open or self._syntax_errors.open

    def feed(self, line: LogLine) -> Iterable[TracebackEvent]:
        """Read a line. What is complete with it comes back."""
        voice = line.voice
        if not voice:
            return self._feed_shared(line)
        reader = self._voices.get(voice)
        if reader is None:
            return self._first_line(line) if may_begin(line.text) else ()
        events = reader.feed(line)
        if events and not reader.open:
            del self._voices[voice]
        return events

    def _feed_shared(self, line: LogLine) -> Iterable[TracebackEvent]:
        if not self._shared.open:
            was_open = self._syntax_errors.open
            event = self._syntax_errors.feed(line)
            if event is not None:
                return [event]
            if self._syntax_errors.open or (was_open and line.text[:1].isspace()):
                return ()
        return self._shared.feed(line)

    def _first_line(self, line: LogLine) -> Iterable[TracebackEvent]:
        reader = VoiceReader()
        events = reader.feed(line)
        if not reader.open:
            return events
        if len(self._voices) >= MAX_VOICES:
            events += self._voices.pop(next(iter(self._voices))).finish()
        self._voices[line.voice] = reader
        return events

    def finish(self) -> Iterable[TracebackEvent]:
        """The end of the input: what is still open, marked as incomplete if its exception was not seen."""
        events = [event for reader in self._voices.values() for event in reader.finish()]
        self._voices.clear()
        events += self._shared.finish()
        return sorted(events, key=lambda event: event.line.position)
