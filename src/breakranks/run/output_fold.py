"""Equal lines of many ranks as one line with their rank set, while the lines of each rank stay in order."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from typing import NamedTuple

from breakranks.rankset import RankSet

FOLD_SECONDS = 0.4  # how long a line waits for the same line of other ranks
_MAX_HELD_BYTES = 8 << 20


class Speaker(NamedTuple):
    """Who printed a line."""

    rank: int
    host: str = ""
    local_rank: int = -1


class FoldedLine(NamedTuple):
    """One line, without its newline, of one or several ranks. ``since``: when the first of them printed it."""

    stream: str
    text: bytes
    speakers: tuple[Speaker, ...]
    since: float

    @property
    def ranks(self) -> RankSet:
        return RankSet(speaker.rank for speaker in self.speakers)


class _Group:
    __slots__ = ("number", "ranks", "since", "speakers", "stream", "text")

    def __init__(self, number: int, stream: str, text: bytes, since: float) -> None:
        self.number, self.stream, self.text, self.since = number, stream, text, since
        self.speakers: list[Speaker] = []
        self.ranks: set[int] = set()


def _number(group: _Group) -> int:
    return group.number


class OutputFold:
    """Lines that wait for their copies.

    The lines are kept as groups in one order. A line joins an equal group only if that comes after the group that the
    rank's previous line joined, so no rank's lines change their order.
    """

    def __init__(self) -> None:
        self._groups: deque[_Group] = deque()
        self._by_line: dict[tuple[str, bytes], list[_Group]] = defaultdict(list)
        self._last: dict[tuple[str, int], int] = {}  # the group of the last line of a rank's stream
        self._made = 0
        self._held_bytes = 0

    def add(self, speaker: Speaker, stream: str, text: bytes, now: float) -> None:
        """Add the next line of a rank's stream."""
        last = self._last.get((stream, speaker.rank), -1)
        equal = self._by_line[stream, text]
        at = bisect_right(equal, last, key=_number)
        group = equal[at] if at < len(equal) else self._new_group(stream, text, now)
        group.speakers.append(speaker)
        group.ranks.add(speaker.rank)
        self._last[stream, speaker.rank] = group.number

    def ready(self, now: float, world: int = 0) -> list[FoldedLine]:
        """Take out the lines that need not wait: all ``world`` ranks have printed them, or their time has passed."""
        found = []
        while self._groups and (
            0 < world <= len(self._groups[0].ranks)
            or now - self._groups[0].since >= FOLD_SECONDS
            or self._held_bytes > _MAX_HELD_BYTES
        ):
            found.append(self._take())
        return found

    def close(self) -> list[FoldedLine]:
        """Take out all that is left."""
        return [self._take() for _ in range(len(self._groups))]

    def _new_group(self, stream: str, text: bytes, now: float) -> _Group:
        group = _Group(self._made, stream, text, now)
        self._made += 1
        self._groups.append(group)
        self._by_line[stream, text].append(group)
        self._held_bytes += len(text) + 500  # of the group itself
        return group

    def _take(self) -> FoldedLine:
        group = self._groups.popleft()
        equal = self._by_line[group.stream, group.text]
        del equal[0]
        if not equal:
            del self._by_line[group.stream, group.text]
        self._held_bytes -= len(group.text) + 500
        speakers = tuple(sorted(group.speakers))
        return FoldedLine(group.stream, group.text, speakers, group.since)
