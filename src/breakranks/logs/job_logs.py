"""Read the logs of a job, whole or while they grow, and report on them."""

from __future__ import annotations

import copy
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from breakranks.errors import UsageError
from breakranks.logs.crash_report import CrashReport
from breakranks.logs.failure_groups import FailureCollector
from breakranks.logs.line_prefixes import PrefixReader
from breakranks.logs.log_blocks import Block, GrowingFile, LogFile
from breakranks.logs.log_events import Event, LogLine, TracebackEvent
from breakranks.logs.log_scan import LogScanner, read_record
from breakranks.logs.log_sources import MIXED, RECORD, STANDARD_INPUT, FoundSources, LogSource, find_sources
from breakranks.logs.report_builder import build_report
from breakranks.logs.training_progress import last_step
from breakranks.rankset import RankSet

_DIGITS = re.compile(r"\d+")  # copies of one exception differ in addresses and counts
_MAX_RECORD_BYTES = 16 << 20
_TAIL_BYTES = 256 << 10
_MAX_OPEN_FILES = 200
_MAX_PENDING = 20_000  # events of one file, kept back in case that another run begins in it
_POLLS_PER_SEARCH = 4  # of the folders for new files


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read. ``since``: lines with an earlier time stamp are left out. ``ranks``: what others wrote is, too."""

    since: float = 0.0
    ranks: RankSet | None = None


class JobLogs:
    """The logs of one job. ``read`` reads them to their ends; ``read_growth`` what was written since."""

    def __init__(self, found: FoundSources, options: ReadOptions | None = None, world: int = 0) -> None:
        self._found = found
        self._options = options or ReadOptions()
        self._world = world
        self._collector = FailureCollector()
        self._problems: list[str] = []
        self._pending: list[Event] | None = None  # of the file that is being read
        self._rank_of_folder: dict[str, int] = {}  # of --log-dir, whose paths have local ranks
        self._runs: Counter[str] = Counter()  # by source: earlier runs in it
        self._bytes = 0
        self._steps: dict[str, str] = {}  # by source: the last step before its first failure

    def read(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Read every file to its end. ``progress`` gets the bytes read and the size of all files."""
        sources = self._found.sources
        total = sum(_size(source.path) for source in sources)
        for source in sources:
            if source.kind != RECORD and (log := self._opened(source)) is not None:
                self._read_log(source, log, lambda: progress(self._bytes, total))
        self._read_records()

    def _opened(self, source: LogSource) -> LogFile | None:
        """Open a log. Of several, one that vanished or that is not permitted is left out, with a note."""
        try:
            return LogFile(source.path)
        except UsageError as error:
            if len(self._found.sources) == 1:
                raise
            self._problems.append(error.message)
            return None

    def _read_log(self, source: LogSource, log: LogFile, progress: Callable[[], None]) -> None:
        try:
            scanner = self._scanner(source)
            self._pending = []
            for block in log.blocks():
                self._bytes += len(block.data)
                self._take(source, scanner, scanner.feed(block))
                progress()
            self._take(source, scanner, scanner.finish())
        finally:
            self._flush()
            log.close()
        if log.problem:
            self._problems.append(log.problem)

    def add(self, event: Event) -> None:
        """Add an event that is known from elsewhere."""
        self._collector.add(event)

    def add_regular_end(self, rank: int, attempt: int) -> None:
        """Add that a rank has ended in the regular way, as it told itself."""
        self._collector.add_regular_end(rank, attempt)

    def add_process(self, pid: int, rank: int, attempt: int) -> None:
        """Take note of the rank of a process, of the host on which the launcher runs: some lines name only a pid."""
        self._collector.add_process(pid, rank, attempt)

    def report(self) -> CrashReport:
        """Return what the logs show so far."""
        report = build_report(self._collector, self._world)
        progress = self._last_step(report)
        return replace(
            report,
            files=len(self._found.sources),
            bytes_read=self._bytes,
            problems=tuple(self._problems),
            older=self._found.older,
            progress=progress,
        )

    def _scanner(self, source: LogSource) -> LogScanner:
        if source.kind == MIXED and self._options.ranks is None:
            self._collector.merged = True
        if source.rank >= 0:
            self._collector.ranks.add(source.rank)
        elif source.local_rank >= 0:
            self._collector.local_ranks.add(source.local_rank)
        return LogScanner(source, _year(source.path), on_ranks=self._collector.ranks.update)

    def _take(self, source: LogSource, scanner: LogScanner, events: Iterable[Event]) -> None:
        for event in events:
            self._forget_earlier_run(source, scanner)
            if self._is_wanted(event.line):
                self._keep(event)
                if source.local_rank >= 0 and event.line.rank >= 0:
                    self._rank_of_folder[os.path.dirname(source.path)] = event.line.rank
                if source.name not in self._steps:
                    self._steps[source.name] = last_step(scanner.lines_before(event.line.position))
        self._forget_earlier_run(source, scanner)

    def _forget_earlier_run(self, source: LogSource, scanner: LogScanner) -> None:
        """Forget what a file said before, if another run of the job begins in it. Other files may have no such run."""
        if not scanner.take_new_run():
            return
        self._steps.pop(source.name, None)
        self._runs[source.name] += 1
        if self._pending is None:
            self._collector.new_run()
        else:
            self._pending.clear()
        self._collector.earlier_runs = max(self._runs.values())

    def _keep(self, event: Event) -> None:
        if self._pending is None:
            self._collector.add(event)
            return
        self._pending.append(event)
        if len(self._pending) >= _MAX_PENDING:
            self._flush()

    def _flush(self) -> None:
        pending, self._pending = self._pending or [], None
        for event in pending:
            self._collector.add(event)

    def _is_wanted(self, line: LogLine) -> bool:
        since, ranks = self._options.since, self._options.ranks
        return (not line.time or line.time >= since) and (ranks is None or line.rank in ranks)

    def _read_records(self) -> None:
        for source in self._found.sources:
            if source.kind == RECORD:
                self._read_record(source)

    def _is_printed(self, event: TracebackEvent) -> bool:
        """Whether the rank of an error file printed the same exception: there, it has the frames of the launcher."""
        line, raised = event.line, event.raised
        attempt = self._collector.attempts.get(line.attempt)
        message = _DIGITS.sub("#", raised.message)
        return any(
            (group.raised.type, _DIGITS.sub("#", group.raised.message)) == (raised.type, message)
            and (
                line.rank in group.ranks
                or (line.rank < 0 and any(line.local_rank == local.number for local in group.local_ranks))
            )
            for group in (attempt.exceptions.values() if attempt is not None else ())
        )

    def _read_record(self, source: LogSource) -> None:
        try:
            with open(source.path, "rb") as file:
                data = file.read(_MAX_RECORD_BYTES)
        except OSError as error:
            self._problems.append(f"{source.path} cannot be read: {error.strerror}")
            return
        self._bytes += len(data)
        rank = self._rank_of_folder.get(os.path.dirname(source.path), source.rank)
        for event in read_record(source._replace(rank=rank), data):
            if self._is_wanted(event.line) and not (isinstance(event, TracebackEvent) and self._is_printed(event)):
                self._collector.add(event)

    def _last_step(self, report: CrashReport) -> str:
        """Return the last completed step that a rank of the cause reports, or any rank."""
        cause = report.cause
        ranks = set(cause.ranks) if cause is not None else set()
        end = {cause.line.source: cause.line.position} if cause is not None and cause.line is not None else {}
        sources = [source for source in self._found.sources if source.kind != RECORD and source.path != STANDARD_INPUT]
        chosen = [source for source in sources if _number(source) in ranks or source.name in end] or sources[:8]
        for source in sorted(chosen, key=lambda source: source.name not in end)[:16]:
            if step := last_step(list(_tail(source, end.get(source.name, -1)))):
                return step
        return next((step for name in end if (step := self._steps.get(name, ""))), "")


class _GrowingSource(NamedTuple):
    source: LogSource
    file: GrowingFile
    scanner: LogScanner


class GrowingLogs(JobLogs):
    """The same for logs that are still written: ``poll`` reads what was added since. Files may be created later, and
    new ones in a folder are found."""

    def __init__(self, found: FoundSources, options: ReadOptions | None = None, world: int = 0) -> None:
        super().__init__(found, options, world)
        self._open: dict[str, _GrowingSource] = {}
        self._polls = 0

    def poll(self) -> bool:
        """Read what was added; return whether there was anything."""
        before = self._bytes
        if self._polls % _POLLS_PER_SEARCH == 0:
            self._search()
        self._polls += 1
        for growing in self._open.values():
            self._add(growing, growing.file.growth())
        return self._bytes > before

    def report(self) -> CrashReport:
        """Return what the logs show if they end here: a traceback may be the last that a rank prints."""
        collector, steps, runs = self._collector, self._steps, self._runs
        self._collector, self._steps, self._runs = copy.deepcopy(collector), dict(steps), Counter(runs)
        try:
            for growing in self._open.values():
                scanner = copy.deepcopy(growing.scanner)
                self._take(growing.source, scanner, filter(_is_whole, scanner.finish()))
            return super().report()
        finally:
            self._collector, self._steps, self._runs = collector, steps, runs

    def finish(self) -> None:
        """Take what only the end of a log completes."""
        self._search()
        for growing in self._open.values():
            self._add(growing, growing.file.growth())
            self._add(growing, growing.file.rest())
            self._take(growing.source, growing.scanner, growing.scanner.finish())
        self._read_records()

    def close(self) -> None:
        for growing in self._open.values():
            growing.file.close()

    def _search(self) -> None:
        """Find files that are new in the folders."""
        paths = self._found.paths
        self._found = find_sources(paths, expected=True) if paths else self._found
        for source in self._found.sources:
            if source.kind != RECORD and source.path not in self._open and len(self._open) < _MAX_OPEN_FILES:
                self._open[source.path] = _GrowingSource(source, GrowingFile(source.path), self._scanner(source))

    def _add(self, growing: _GrowingSource, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self._bytes += len(block.data)
            self._take(growing.source, growing.scanner, growing.scanner.feed(block))


def _is_whole(event: Event) -> bool:
    return not isinstance(event, TracebackEvent) or event.raised.complete


def _number(source: LogSource) -> int:
    return source.rank if source.rank >= 0 else source.local_rank


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if path != STANDARD_INPUT else 0
    except OSError:
        return 0


def _year(path: str) -> int:
    """Return the year in which a log was last written: glog's time stamps have none."""
    try:
        return time.localtime(os.stat(path).st_mtime).tm_year
    except OSError:
        return time.localtime().tm_year


def _tail(source: LogSource, end: int) -> Iterator[str]:
    """Yield the last lines of a plain file, or those before an offset, without prefixes."""
    size = _size(source.path)
    end = size if end < 0 else min(end, size)
    try:
        if not os.path.isfile(source.path):  # a pipe cannot be read twice
            return
        with open(source.path, "rb") as file:
            file.seek(max(0, end - _TAIL_BYTES))
            data = file.read(min(end, _TAIL_BYTES))
    except OSError:
        return
    reader = PrefixReader(source)
    reader.learn(data)
    for raw in data.split(b"\n"):
        for line in reader.lines(raw, 0):
            yield line.text
