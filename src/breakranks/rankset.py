"""Sets of ranks, written folded: ``0-6,8-511``.

A :class:`RankSet` is one Python integer with bit *r* set for rank *r*, so the union or difference of two sets of
100,000 ranks is one operation on 12 KB, and a prefix tree can have one at every branch. (ClusterShell's ``RangeSet``
keeps a string per member since version 1.9, which is three orders of magnitude larger at that size. It is made for node
names, where padding matters.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from breakranks.errors import UsageError

MAX_RANK = 10_000_000
_PART = re.compile(r"(\d+)(?:-(\d+)(?:/(\d+))?)?\Z")


class RankSet:
    """An immutable set of ranks.

    >>> RankSet([0, 1, 2, 5])
    RankSet('0-2,5')
    >>> RankSet.parse("0-7/2") | RankSet([1])
    RankSet('0-2,4,6')
    """

    __slots__ = ("_bits",)

    def __init__(self, ranks: Iterable[int] = ()) -> None:
        # A bytearray, because setting bits in an int one by one is quadratic in the largest rank.
        listed = list(ranks)
        if not listed:
            self._bits = 0
            return
        if min(listed) < 0:
            raise ValueError("a rank is never negative")
        field = bytearray(max(listed) // 8 + 1)
        for rank in listed:
            field[rank >> 3] |= 1 << (rank & 7)
        self._bits = int.from_bytes(field, "little")

    @classmethod
    def from_bits(cls, bits: int) -> RankSet:
        made = cls.__new__(cls)
        made._bits = bits
        return made

    @classmethod
    def span(cls, start: int, stop: int) -> RankSet:
        """The ranks ``start <= r < stop``."""
        return cls.from_bits(((1 << stop) - 1) & ~((1 << start) - 1) if stop > start else 0)

    @classmethod
    def parse(cls, text: str) -> RankSet:
        """Parse ``0-3,7`` or ``0-31/8``; raise :class:`UsageError` that names the invalid part."""
        ranks = cls()
        if not text.strip():
            return ranks
        for part in text.split(","):
            match = _PART.match(part.strip())
            if match is None:
                raise UsageError(
                    f"{part.strip()!r} is not a rank set",
                    "Write ranks as 3, 0-7, 0,4-6, or 0-31/8 for every eighth.",
                )
            start = int(match[1])
            end = int(match[2]) if match[2] else start
            step = int(match[3]) if match[3] else 1
            if end > MAX_RANK:
                raise UsageError(f"rank {end} is out of range", f"Ranks go up to {MAX_RANK:,}.")
            if end < start or step < 1:
                raise UsageError(f"{part.strip()!r} is an empty range", "Write the smaller rank first: 0-7.")
            ranks |= cls.span(start, end + 1) if step == 1 else cls._stepped(start, end, step)
        return ranks

    @classmethod
    def _stepped(cls, start: int, end: int, step: int) -> RankSet:
        """Return every ``step``-th rank, as a quotient: the geometric series 1 + x + x² + …"""
        count = (end - start) // step + 1
        if count < 64:
            return cls(range(start, end + 1, step))
        return cls.from_bits((((1 << step * count) - 1) // ((1 << step) - 1)) << start)

    @property
    def bits(self) -> int:
        return self._bits

    def __iter__(self) -> Iterator[int]:
        for start, end in self.ranges():
            yield from range(start, end + 1)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The runs of consecutive ranks, as (first, last)."""
        # One pass over the binary text, because removing bits from the integer would copy it for each run. The text
        # begins at the first rank, so that it is short for a single rank among a hundred thousand.
        first = (self._bits & -self._bits).bit_length() - 1
        text = bin(self._bits >> max(first, 0))[:1:-1]
        start = text.find("1")
        while start >= 0:
            end = text.find("0", start)
            if end < 0:
                end = len(text)
            yield first + start, first + end - 1
            start = text.find("1", end)

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return self._bits != 0

    def __contains__(self, rank: int) -> bool:
        return rank >= 0 and bool(self._bits >> rank & 1)

    def __or__(self, other: RankSet) -> RankSet:
        return RankSet.from_bits(self._bits | other._bits)

    def __and__(self, other: RankSet) -> RankSet:
        return RankSet.from_bits(self._bits & other._bits)

    def __sub__(self, other: RankSet) -> RankSet:
        return RankSet.from_bits(self._bits & ~other._bits)

    def __le__(self, other: RankSet) -> bool:
        return not self._bits & ~other._bits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankSet) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    def __str__(self) -> str:
        return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in self.ranges())

    def __repr__(self) -> str:
        return f"RankSet({str(self)!r})"

    @property
    def first(self) -> int:
        """The lowest rank; raises ``ValueError`` on an empty set."""
        if not self._bits:
            raise ValueError("an empty rank set has no first rank")
        return (self._bits & -self._bits).bit_length() - 1


def ranks_text(ranks: RankSet) -> str:
    """Return a set as a sentence names it: ``rank 3`` or ``ranks 0-2,4``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {ranks}"


def short_text(ranks: RankSet, most: int | None = 28) -> str:
    """Return a short text: regular parts as ``5-1021/8``, which ``parse`` accepts, and cut after ``most`` characters.

    >>> short_text(RankSet([5, 13, 21, 29])), short_text(RankSet([0, 1, 4, 9, 11, 12]), 5)
    ('5-29/8', '0-1,4,…')
    """
    parts: list[str] = []
    runs = list(ranks.ranges())
    at = 0
    while at < len(runs):
        first, last = runs[at]
        end = _regular(runs, at) if first == last else at
        if end >= at + 2:
            last = runs[end][0]
            parts.append(f"{first}-{last}/{runs[at + 1][0] - first}")
            at = end + 1
        else:
            parts.append(str(first) if first == last else f"{first}-{last}")
            at += 1
    text = ",".join(parts)
    if most is None or len(text) <= most:
        return text
    return text[: max(text.rfind(",", 0, most), len(parts[0]))] + ",…"


def _regular(runs: list[tuple[int, int]], start: int) -> int:
    """Return the index of the last of the single ranks from ``start`` on that are equally far apart."""
    end = start
    while end + 1 < len(runs) and runs[end + 1][0] == runs[end + 1][1]:
        if end > start and runs[end + 1][0] - runs[end][0] != runs[start + 1][0] - runs[start][0]:
            break
        end += 1
    return end
