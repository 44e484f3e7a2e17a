"""Find the events in a log. A table of literal texts finds the few lines that matter; only they, and what follows a
traceback or a launcher's report, are read line by line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ahocorasick_rs import BytesAhoCorasick

from breakranks.logs import known_lines, launcher_lines, watchdog_lines
from breakranks.logs.attempt_counter import AttemptCounter
from breakranks.logs.ending_watch import EndingWatch
from breakranks.logs.launcher_lines import LauncherReader
from breakranks.logs.line_prefixes import PrefixReader, StampMemory, time_of
from breakranks.logs.log_blocks import Block
from breakranks.logs.log_events import Event, ExitEvent, LogLine, TracebackEvent
from breakranks.logs.log_sources import LogSource
from breakranks.logs.traceback_reader import TracebackReader

# Any word of a traceback, so that one whose header is torn is found too.
_TRACEBACK_TRIGGERS = (b"Traceback", b"Error", b"Exception", b'  File "')
TRIGGERS = tuple(
    dict.fromkeys(
        (
            *_TRACEBACK_TRIGGERS,
            b"Setting OMP_NUM_THREADS",
            *known_lines.TRIGGERS,
            *watchdog_lines.TRIGGERS,
            *launcher_lines.TRIGGERS,
        )
    )
)
_HEADER = "Traceback (most recent call last)"
_BAR = re.compile(r"%\||\d(?:it|s|B)/(?:it|s)\b|\[=*[>.]|\u2588|\u2501")
_MAX_OPEN_LINES = 20_000  # read after the last line that mattered
_STEP_WINDOW_BYTES = 256 << 10
# What launchers print at the start of a job: behind a failure, another run begins in the same log.
_RUN_START = re.compile(r"Setting OMP_NUM_THREADS environment variable for each process to be 1 in default")


class LogScanner:
    """Reads one source, block by block, in order. ``on_ranks`` gets the ranks that prefixes of any line name."""

    _automaton: BytesAhoCorasick | None = None

    def __init__(
        self, source: LogSource, year: int = 0, on_ranks: Callable[[set[int]], None] = lambda ranks: None
    ) -> None:
        self.source = source
        self._prefixes = PrefixReader(source, year)
        self._tracebacks = TracebackReader()
        self._launcher = LauncherReader()
        self._endings = EndingWatch()
        self._attempts = AttemptCounter()
        self._stamps = StampMemory()
        self._block = Block(b"", 0)
        self._on_ranks = on_ranks
        self._failed = False
        self._new_run = False

    def feed(self, block: Block) -> Iterator[Event]:
        """Yield the events of the next lines."""
        self._block = block
        if ranks := self._prefixes.learn(block.data):
            self._on_ranks(ranks)
        data, at, idle = block.data, 0, 0
        for start in _hits(data):
            if start < at:
                continue
            while self._open and idle < _MAX_OPEN_LINES and (end := _line_end(data, at)) <= start:
                yield from self._read(at, end, hit=False)
                at, idle = end, idle + 1
            begin = max(data.rfind(b"\n", at, start) + 1, at)
            at, idle = _line_end(data, start), 0
            yield from self._read(begin, at, hit=True)
        while at < len(data) and self._open and idle < _MAX_OPEN_LINES:
            end = _line_end(data, at)
            yield from self._read(at, end, hit=False)
            at, idle = end, idle + 1

    def finish(self) -> Iterator[Event]:
        """Yield what the end of the log has completed."""
        for event in (*self._tracebacks.finish(), *self._launcher.finish()):
            yield from self._numbered(self._endings.feed(event))
        yield from self._numbered(self._endings.finish())
        yield from self._attempts.finish()

    def take_new_run(self) -> bool:
        """Whether a new run of the job has begun in this log since the last call: with the event that was yielded
        last."""
        found, self._new_run = self._new_run, False
        return self._attempts.take_new_run() or found

    def lines_before(self, position: int) -> list[str]:
        """Return the lines before an offset, as far as they are in the block that was read last."""
        at = max(0, min(position - self._block.position, len(self._block.data)))
        data = self._block.data[max(0, at - _STEP_WINDOW_BYTES) : at]
        return [line.text for raw in data.split(b"\n") for line in self._prefixes.lines(raw, 0)]

    def _lines_after(self, event: TracebackEvent) -> list[str]:
        """Return the lines behind a traceback, as far as they are in the block that was read last."""
        data, at = self._block.data, max(0, event.last_position - self._block.position)
        raw_lines = data[at : at + _STEP_WINDOW_BYTES].split(b"\n")
        return [line.text for raw in raw_lines for line in self._prefixes.lines(raw, 0)]

    @property
    def _open(self) -> bool:
        return self._tracebacks.open or self._launcher.open or self._endings.open

    def _read(self, start: int, end: int, *, hit: bool) -> Iterator[Event]:
        data = self._block.data
        for line in self._prefixes.lines(data[start:end], self._block.position + start):
            if hit and not line.time:
                line = line._replace(time=self._stamps.before(data, self._block.position, start))
            if line.rank >= 0:
                self._on_ranks({line.rank})
            if self._failed and _RUN_START.search(line.text):
                self._forget()
            for event in self._events(_from_header(line), hit=hit):
                self._failed = self._failed or isinstance(event, ExitEvent)
                yield from self._numbered(self._endings.feed(event))
            yield from self._numbered(self._endings.see(line))

    def _forget(self) -> None:
        """Start anew, at the first line of another run."""
        self._new_run, self._failed, self._attempts = True, False, AttemptCounter()
        self._tracebacks, self._launcher, self._endings = TracebackReader(), LauncherReader(), EndingWatch()

    def _events(self, line: LogLine, *, hit: bool) -> Iterator[Event]:
        yield from self._tracebacks.feed(line)
        if hit or self._launcher.open:
            yield from self._launcher.feed(line)
        if hit:
            found = watchdog_lines.read_timeout(line) or known_lines.read_known(line)
            if found is not None:
                yield found

    def _numbered(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield events with the numbers of their attempts. The path of a file may tell it."""
        for event in events:
            if self.source.attempt >= 0:
                yield event
            else:
                yield from self._attempts.feed(event)


def _hits(data: bytes) -> Iterator[int]:
    if LogScanner._automaton is None:
        LogScanner._automaton = BytesAhoCorasick(list(TRIGGERS))
    for _, start, _ in LogScanner._automaton.find_matches_as_indexes(data):
        yield start


def _line_end(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return len(data) if end < 0 else end + 1


def _from_header(line: LogLine) -> LogLine:
    """Drop a progress bar before the header of a traceback: it did not end its line."""
    at = line.text.find(_HEADER)
    if at <= 0 or not _BAR.search(line.text[:at]):
        return line
    return line._replace(text=line.text[at:])


def read_record(source: LogSource, data: bytes) -> Iterator[Event]:
    """Yield the exception in a JSON record: torchrun's error file, or that of ``breakranks run``."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    text, moment = _record_text(value)
    reader = TracebackReader()
    base = LogLine("", source.rank, source.host, source.local_rank, max(source.attempt, 0), source.name, source.name)
    events: list[Event] = []
    for line in text.splitlines():
        events += reader.feed(base._replace(text=line, time=moment))
    events += reader.finish()
    for event in events:
        if isinstance(event, TracebackEvent):
            yield replace(event, line=event.line._replace(time=moment))


def _record_text(value: object) -> tuple[str, float]:
    """Return the traceback in a record, and when it was printed."""
    if not isinstance(value, dict):
        return "", 0.0
    if isinstance(value.get("traceback"), str):
        moment = value.get("time")
        return value["traceback"], float(moment) if isinstance(moment, int | float) else 0.0
    message = value.get("message")
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    if not isinstance(extra, dict):
        return (message, 0.0) if isinstance(message, str) else ("", 0.0)
    stamp = str(extra.get("timestamp", ""))
    return str(extra.get("py_callstack", "")), float(stamp) if stamp.isdigit() else time_of(stamp)
