"""Lines of logs that match a pattern, with the ranks that wrote them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from breakranks.errors import UsageError
from breakranks.logs.line_prefixes import PrefixReader
from breakranks.logs.log_blocks import Block, GrowingFile, LogFile
from breakranks.logs.log_events import LogLine
from breakranks.logs.log_sources import RECORD, FoundSources, LogSource
from breakranks.rankset import RankSet

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """Which lines are wanted. ``ranks`` None: of any rank; ``since`` 0: of any time."""

    pattern: re.Pattern[str]
    ranks: RankSet | None = None
    since: float = 0.0


class _SearchedFile:
    """One file and the matching lines in it. A line without a time stamp has that of the line before."""

    def __init__(self, source: LogSource, wanted: LineFilter) -> None:
        self.path = source.path
        self._source = source
        self._wanted = wanted
        self._prefixes = PrefixReader(source, keep_times=True)
        self._bytes = re.compile(_bytes_pattern(wanted.pattern))
        self._time = 0.0

    def search(self, block: Block) -> Iterator[tuple[str, str]]:
        self._prefixes.learn(block.data)
        data = block.data
        if self._wanted.since:
            yield from self._each_line(block)
            return
        at = 0
        while (match := self._bytes.search(data, at)) is not None:
            start = data.rfind(b"\n", 0, match.start()) + 1
            end = data.find(b"\n", match.end())
            end = len(data) if end < 0 else end
            for raw in data[start:end].split(b"\n"):
                yield from self._matching(raw)
            at = end + 1
            if at > len(data):
                return

    def _each_line(self, block: Block) -> Iterator[tuple[str, str]]:
        for raw in block.data.split(b"\n"):
            yield from self._matching(raw)

    def _matching(self, raw: bytes) -> Iterator[tuple[str, str]]:
        for line in self._prefixes.lines(raw, 0):
            self._time = line.time or self._time
            if self._fits(line):
                yield _who(line, self._source), line.text

    def _fits(self, line: LogLine) -> bool:
        wanted = self._wanted
        if wanted.ranks is not None and line.rank not in wanted.ranks:
            return False
        if wanted.since and self._time < wanted.since:
            return False
        return bool(line.text) and wanted.pattern.search(line.text) is not None


def found_lines(found: FoundSources, wanted: LineFilter, *, follow: bool = False) -> Iterator[tuple[str, str]]:
    """Yield who wrote a matching line, and the line. ``follow``: go on with what is added, for ever."""
    sources = [source for source in found.sources if source.kind != RECORD and _may_have(source, wanted.ranks)]
    if follow:
        yield from _followed([_SearchedFile(source, wanted) for source in sources])
        return
    for source in sources:
        file = _SearchedFile(source, wanted)
        with closing(LogFile(source.path)) as log:
            for block in log.blocks():
                yield from file.search(block)


def _followed(files: list[_SearchedFile]) -> Iterator[tuple[str, str]]:
    growing = [(file, GrowingFile(file.path)) for file in files]
    try:
        while True:
            for file, log in growing:
                for block in log.growth():
                    yield from file.search(block)
            time.sleep(_POLL_SECONDS)
    finally:
        for _, log in growing:
            log.close()


def _may_have(source: LogSource, ranks: RankSet | None) -> bool:
    return ranks is None or source.rank < 0 or source.rank in ranks


def _who(line: LogLine, source: LogSource) -> str:
    """Return ``3``, ``n1:3``, or the name of a file whose lines name no rank."""
    if line.rank >= 0:
        return f"{line.host}:{line.rank}" if line.host else str(line.rank)
    if line.local_rank >= 0:
        return f"local {line.local_rank}"
    return source.name if source.name != "standard input" else ""


def _bytes_pattern(pattern: re.Pattern[str]) -> bytes:
    """Return a pattern of bytes that finds at least the lines which the pattern finds: any line where in doubt."""
    text = pattern.pattern
    # Beginnings and ends of a line lie behind prefixes; letters outside ASCII match other bytes.
    if not text.isascii() or re.search(r"[\^$]|\\[AZbBwWdDsS]|\(\?|\.", text):
        return b"[^\n]+"
    try:
        re.compile(text.encode())
    except re.error as error:
        raise UsageError(f"{text!r} is not a regular expression: {error}", "Put a \\ before ( [ * + ?") from None
    return text.encode()
