"""The answers of many ranks to one command, folded: equal answers once, different ones by group.

Pure values, and the functions that compute them; ``show/answer_lines`` words them. The described values come from other
processes, and nothing here raises, whatever their shape is. Groups keep their ranks as tuples and make a
:class:`RankSet` on demand: a set for each of 100,000 ranks with different answers would be 600 MB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from operator import ne
from typing import TypeVar

from msgspec import Struct, field

from breakranks.rankset import RankSet
from breakranks.snapshot.rank_answer import RankAnswer

# A number as it is compared and written to JSON. One that is not finite is its name, so that nan equals nan.
Figure = int | float | str

FIGURES = ("min", "max", "mean")
LAYOUT = ("shape", "dtype", "type", "device")
COUNTS = ("nan", "inf")

_NOT_FINITE = {"nan": "nan", "inf": "inf", "+inf": "inf", "infinity": "inf", "-inf": "-inf", "-infinity": "-inf"}
_DECIMAL = re.compile(r"-?[0-9]{1,3900}\Z")
_MAX_NUMBER_BITS = 13_000  # Python refuses to write integers of more than 4,300 digits
_MAX_NAME_CHARACTERS = 200  # of a name that another process chose
_MAX_DIMENSIONS = 64

# Only after "at": hex(flags) is a value, and ranks that differ in it differ.
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{4,}")
_INDEX = re.compile(r"device='([a-z]+):\d+'")

_DIFF_LINES = 3  # texts with more line ends are compared by line,
_DIFF_PART = 4  # and at most one line in this many may differ

Key = TypeVar("Key", bound=Hashable)


class Number(Struct, frozen=True, kw_only=True, gc=False):
    """A described number."""

    type: str = ""
    value: Figure = 0


class Tensor(Struct, frozen=True, kw_only=True, gc=False):
    """A described tensor or array; unknown fields are ``None`` or empty. ``device`` is without its index, in which
    ranks always differ. ``value`` is that of a single element."""

    type: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    count: int | None = None
    nan: int | None = None
    inf: int | None = None
    min: Figure | None = None
    max: Figure | None = None
    mean: Figure | None = None
    digest: str = ""
    value: Figure | None = None
    local: str = ""
    note: str = ""


class Ranked(Struct, frozen=True, kw_only=True, gc=False):
    """Something about some ranks, in ascending order."""

    members: tuple[int, ...]

    @property
    def ranks(self) -> RankSet:
        return RankSet(self.members)


class AnswerGroup(Ranked, frozen=True, kw_only=True):
    """Ranks with the same answer. ``text`` has ``0x…`` for addresses in which they differ, ``masked`` for all
    addresses. ``value`` is set if they share it."""

    text: str
    masked: str
    error: bool = False
    cut: int = 0
    late: bool = False
    value: Number | Tensor | None = None


class AnswerShare(Ranked, frozen=True, kw_only=True):
    """Ranks with the same number."""

    value: Figure


class NumberSummary(Struct, frozen=True, kw_only=True):
    """Numbers that are not all the same. ``low``, ``high``, ``mean`` and ``spread`` are of the finite ones.
    ``usual`` is the number of more than half of the ranks, and ``differs`` the others, if there is such a number."""

    low: AnswerShare | None
    high: AnswerShare | None
    mean: Figure | None
    spread: Figure | None
    usual: AnswerShare | None
    differs: tuple[AnswerShare, ...]
    nan: RankSet
    inf: RankSet


class TensorRow(Ranked, frozen=True, kw_only=True):
    """Ranks with the same tensor."""

    tensor: Tensor


class TensorSummary(Struct, frozen=True, kw_only=True):
    """Tensors across ranks. ``same``: digest, shape and dtype are equal. ``layouts`` has a row for each shape,
    dtype, type and kind of device, ``rows`` one for each content. ``usual`` is the row of more than half of the
    ranks."""

    same: bool
    layouts: tuple[TensorRow, ...]
    rows: tuple[TensorRow, ...]
    differing: tuple[str, ...]
    usual: TensorRow | None
    differs: RankSet
    nan: RankSet
    inf: RankSet


class AnswerSide(Ranked, frozen=True, kw_only=True):
    """Ranks with the same line."""

    text: str


class AnswerDiff(Ranked, frozen=True, kw_only=True):
    """Long texts that differ little: the lines of the most common one, and for some of them, by index, the line of each
    side, the most common first. ``groups`` are the indexes of the groups with these texts."""

    groups: tuple[int, ...]
    lines: tuple[str, ...]
    sides: dict[int, tuple[AnswerSide, ...]]
    error: bool = False
    cut: int = 0


class FoldedAnswers(Struct, frozen=True, kw_only=True):
    """The answers of all ranks: groups, the largest first, and their summaries."""

    groups: tuple[AnswerGroup, ...] = field(default=())
    numbers: NumberSummary | None = None
    tensors: TensorSummary | None = None
    diff: AnswerDiff | None = None


def fold(answers: Iterable[RankAnswer]) -> FoldedAnswers:
    """Fold the answers to one command, in any order. Of two answers of one rank the last counts.

    >>> [str(group.ranks) for group in fold([RankAnswer(rank=r, text=str(r % 3 == 0)) for r in range(4)]).groups]
    ['0,3', '1-2']
    """
    listed = sorted({answer.rank: answer for answer in answers}.values(), key=lambda answer: answer.rank)
    values = {answer.rank: describe(answer.value) for answer in listed if not (answer.error or answer.late)}
    groups = _groups(listed, values)
    return FoldedAnswers(groups=groups, numbers=_numbers(values), tensors=_tensors(values), diff=_diff(groups))


def describe(value: object) -> Number | Tensor | None:
    """The value that another process describes, as far as the description is valid."""
    if not isinstance(value, dict):
        return None
    kind = value.get("kind")
    if kind == "number":
        number = figure(value.get("value"))
        return None if number is None else Number(type=_name(value.get("type")), value=number)
    if kind != "tensor":
        return None
    return Tensor(
        type=_name(value.get("type")),
        shape=_shape(value.get("shape")),
        dtype=_name(value.get("dtype")),
        device=_name(value.get("device")).partition(":")[0],
        count=_count(value.get("count")),
        nan=_count(value.get("nan")),
        inf=_count(value.get("inf")),
        min=figure(value.get("min")),
        max=figure(value.get("max")),
        mean=figure(value.get("mean")),
        digest=_name(value.get("digest")),
        value=figure(value.get("value")),
        local=_name(value.get("local")),
        note=_name(value.get("note")),
    )


def figure(value: object) -> Figure | None:
    """A comparable number, from a number, a name such as ``nan``, or the digits of a long integer."""
    if isinstance(value, str):
        if _DECIMAL.match(value):
            return int(value)
        return _NOT_FINITE.get(value.lower()) if len(value) < 10 else None
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_NUMBER_BITS else None
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    return None


def _name(value: object) -> str:
    return value[:_MAX_NAME_CHARACTERS] if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _shape(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple) or len(value) > _MAX_DIMENSIONS:
        return None
    sizes = [size for size in map(_count, value) if size is not None]
    return tuple(sizes) if len(sizes) == len(value) else None


def _gather(pairs: Iterable[tuple[int, Key]]) -> list[tuple[Key, tuple[int, ...]]]:
    """The ranks of each key: the most common key first, then by rank."""
    found: dict[Key, list[int]] = {}
    for rank, key in pairs:
        found.setdefault(key, []).append(rank)
    return [(key, tuple(ranks)) for key, ranks in sorted(found.items(), key=lambda item: (-len(item[1]), item[1][0]))]


def _groups(listed: Sequence[RankAnswer], values: dict[int, Number | Tensor | None]) -> tuple[AnswerGroup, ...]:
    # Texts are masked once each, not once per rank: most often they are all the same.
    masks: dict[tuple[str, bool], str] = {}
    keys: list[tuple[int, tuple[str, bool, int, bool]]] = []
    texts: dict[int, str] = {}
    for answer in listed:
        text = answer.text.rstrip("\n")
        tensor = isinstance(values.get(answer.rank), Tensor)
        masked = masks.get((text, tensor))
        if masked is None:
            masked = masks[text, tensor] = _mask(text, tensor)
        texts[answer.rank] = text
        keys.append((answer.rank, (masked, answer.error, answer.cut, answer.late)))
    return tuple(
        AnswerGroup(
            members=ranks,
            text=_agreed([texts[rank] for rank in ranks], masked),
            masked=masked,
            error=error,
            cut=cut,
            late=late,
            value=_agreed([values.get(rank) for rank in ranks], None),
        )
        for (masked, error, cut, late), ranks in _gather(keys)
    )


def _mask(text: str, tensor: bool) -> str:
    """The text without addresses and device indexes, which differ between processes."""
    if "0x" in text:
        text = _ADDRESS.sub("at 0x…", text)
    return _INDEX.sub(r"device='\1:…'", text) if tensor else text


_T = TypeVar("_T")


def _agreed(found: Sequence[_T], otherwise: _T) -> _T:
    return found[0] if all(one == found[0] for one in found) else otherwise


def _numbers(values: dict[int, Number | Tensor | None]) -> NumberSummary | None:
    figures = {rank: value.value for rank, value in values.items() if value is not None and value.value is not None}
    shares = [AnswerShare(members=ranks, value=value) for value, ranks in _gather(figures.items())]
    if len(figures) < len(values) or len(shares) < 2:
        return None
    usual = shares[0] if 2 * len(shares[0].members) > len(figures) else None
    finite = [(share.value, share) for share in shares if not isinstance(share.value, str)]
    low = min(finite, key=lambda pair: pair[0]) if finite else None
    high = max(finite, key=lambda pair: pair[0]) if finite else None
    return NumberSummary(
        low=low and low[1],
        high=high and high[1],
        mean=_mean([value for value in figures.values() if not isinstance(value, str)]),
        spread=gap(high[0], low[0]) if low and high else None,
        usual=usual,
        differs=tuple(shares[1:]) if usual else (),
        nan=RankSet(rank for rank, value in figures.items() if value == "nan"),
        inf=RankSet(rank for rank, value in figures.items() if value in ("inf", "-inf")),
    )


def _mean(values: Sequence[int | float]) -> Figure | None:
    if not values:
        return None
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        pass
    try:
        return figure(math.fsum(value / len(values) for value in values))
    except OverflowError:  # an integer beyond every float
        return None


def gap(a: int | float, b: int | float) -> Figure | None:
    """How far apart two numbers are."""
    try:
        return figure(abs(a - b))
    except OverflowError:
        return None


def _tensors(values: dict[int, Number | Tensor | None]) -> TensorSummary | None:
    tensors = {rank: value for rank, value in values.items() if isinstance(value, Tensor)}
    if not tensors or len(tensors) < len(values):
        return None
    layouts = _rows(tensors, {rank: _layout(one) for rank, one in tensors.items()})
    # Without a digest, all known fields must be the same.
    rows = _rows(tensors, {rank: (one.digest, *_layout(one)) if one.digest else one for rank, one in tensors.items()})
    usual = rows[0] if 2 * len(rows[0].members) > len(tensors) else None
    contents = {(row.tensor.digest, row.tensor.shape, row.tensor.dtype) for row in rows}
    return TensorSummary(
        same=len(tensors) == 1 or (len(contents) == 1 and bool(rows[0].tensor.digest)),
        layouts=layouts,
        rows=rows,
        differing=tuple(
            name
            for name in (*LAYOUT, *FIGURES, *COUNTS, "digest")
            if len({getattr(row.tensor, name) for row in rows}) > 1
        ),
        usual=usual,
        differs=RankSet(tensors) - usual.ranks if usual else RankSet(),
        nan=RankSet(rank for rank, one in tensors.items() if _has(one, one.nan, ("nan",))),
        inf=RankSet(rank for rank, one in tensors.items() if _has(one, one.inf, ("inf", "-inf"))),
    )


def _layout(tensor: Tensor) -> tuple[Hashable, ...]:
    return tensor.shape, tensor.dtype, tensor.type, tensor.device


def _rows(tensors: dict[int, Tensor], keys: dict[int, Hashable]) -> tuple[TensorRow, ...]:
    return tuple(TensorRow(members=ranks, tensor=tensors[ranks[0]]) for _, ranks in _gather(keys.items()))


def _has(tensor: Tensor, count: int | None, names: tuple[str, ...]) -> bool:
    if count is not None:
        return count > 0
    return any(value in names for value in (tensor.min, tensor.max, tensor.mean, tensor.value))


def _diff(groups: Sequence[AnswerGroup]) -> AnswerDiff | None:
    """The first long text, and the others that are nearly equal line by line."""
    base_at = next((at for at, one in enumerate(groups) if not one.late and one.text.count("\n") >= _DIFF_LINES), None)
    if base_at is None:
        return None
    base = groups[base_at]
    lines, shown = _both(base)
    alike = {base_at: (lines, shown)}
    changed: set[int] = set()
    for at, one in enumerate(groups[base_at + 1 :], base_at + 1):
        if one.late or one.error != base.error or one.cut != base.cut or one.masked.count("\n") != len(lines) - 1:
            continue
        both = _both(one)
        different = _unequal(lines, both[0])
        if _DIFF_PART * len(different) <= len(lines):
            alike[at] = both
            changed.update(different)
    if len(alike) < 2:
        return None
    masked = {index for _, other in alike.values() for index in _unequal(shown, other)}
    return AnswerDiff(
        members=tuple(sorted(rank for at in alike for rank in groups[at].members)),
        groups=tuple(alike),
        lines=tuple(lines[index] if index in masked else line for index, line in enumerate(shown)),
        sides={index: _sides(index, groups, alike) for index in sorted(changed)},
        error=base.error,
        cut=base.cut,
    )


def _both(group: AnswerGroup) -> tuple[list[str], list[str]]:
    """The lines without addresses, which are compared, and those that are shown."""
    lines = group.masked.split("\n")
    return lines, lines if group.text == group.masked else group.text.split("\n")


def _unequal(some: list[str], other: list[str]) -> list[int]:
    return [index for index, differs in enumerate(map(ne, some, other)) if differs]


def _sides(
    index: int, groups: Sequence[AnswerGroup], alike: dict[int, tuple[list[str], list[str]]]
) -> tuple[AnswerSide, ...]:
    found: dict[str, list[int]] = {}
    for at, (lines, _) in alike.items():
        found.setdefault(lines[index], []).append(at)
    sides = [
        AnswerSide(
            members=tuple(sorted(rank for at in which for rank in groups[at].members)),
            text=_agreed([alike[at][1][index] for at in which], masked),
        )
        for masked, which in found.items()
    ]
    return tuple(sorted(sides, key=lambda side: (-len(side.members), side.members[0])))
