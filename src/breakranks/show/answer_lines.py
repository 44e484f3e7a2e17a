"""The folded answers of many ranks as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from breakranks.rankset import RankSet, short_text
from breakranks.show.quantities import plural
from breakranks.show.terminal_text import Line, Piece, TerminalStyle, columns, text_of, wrap
from breakranks.snapshot.answer_groups import (
    COUNTS,
    FIGURES,
    LAYOUT,
    AnswerDiff,
    AnswerGroup,
    AnswerSide,
    Figure,
    FoldedAnswers,
    Number,
    NumberSummary,
    Tensor,
    TensorRow,
    TensorSummary,
    gap,
)

_FEW_NUMBERS, _FEW_LINES, _FEW_TEXTS = 12, 40, 12  # groups of each kind that are all shown
_ENDS = 3  # of more groups, this many from the front and from the back
_SET_CHARACTERS, _GUTTER_CHARACTERS = 28, 14
_VALUES_SHOWN = 3
_LEAST_ROOM_CHARACTERS = 20  # of a text on a line, however little room is left beside its ranks
_SUMMARY = "      "

_T = TypeVar("_T")


def lines(folded: FoldedAnswers, look: TerminalStyle) -> list[Line]:
    """The answers, equal ones once, and then their summary."""
    shown: list[Line] = []
    table = folded.tensors is not None and _wants_table(folded.tensors, folded.numbers)
    shown += _texts(folded, _worth_showing(folded, table, look), look)
    if folded.numbers is not None:
        shown += _number_lines(folded.numbers, look)
    if folded.tensors is not None:
        shown += _tensor_lines(folded.tensors, table, look)
    return shown


def _wants_table(tensors: TensorSummary, numbers: NumberSummary | None) -> bool:
    """Whether tensors differ; those of one element are numbers, and summarised as such."""
    return not tensors.same and numbers is None


def _worth_showing(folded: FoldedAnswers, table: bool, look: TerminalStyle) -> list[int]:
    """The groups whose text is shown: that of differing tensors tells less than the table, unless it is short."""
    everyone = list(range(len(folded.groups)))
    if not table or look.full:
        return everyone
    answered = [at for at in everyone if not (folded.groups[at].error or folded.groups[at].late)]
    if len(answered) == 1 or all("\n" not in folded.groups[at].text for at in answered):
        return everyone
    return [at for at in everyone if folded.groups[at].error or folded.groups[at].late]


def _texts(folded: FoldedAnswers, which: Sequence[int], look: TerminalStyle) -> Iterator[Line]:
    groups = [folded.groups[at] for at in which]
    if not groups:
        return
    tensors = folded.tensors
    if len(folded.groups) == 1 and len(groups[0].members) == 1:
        yield from _plain(groups[0], look)
    elif len(folded.groups) == 1:
        yield from _unanimous(groups[0], tensors, look)
    elif all("\n" not in group.text for group in groups):
        most = _FEW_NUMBERS if folded.numbers is not None else _FEW_LINES
        yield from _listed(groups, most, look)
    else:
        diff = folded.diff if folded.diff is not None and set(folded.diff.groups) <= set(which) else None
        yield from _blocks(folded.groups, which, diff, tensors, look)


def _plain(group: AnswerGroup, look: TerminalStyle) -> Iterator[Line]:
    """The answer of the only rank: its text alone."""
    if group.text:
        yield from (((text, _style(group)),) for text in _laid(group.text, look.width))
    yield from _cut_line(group.cut, "")


def _unanimous(group: AnswerGroup, tensors: TensorSummary | None, look: TerminalStyle) -> Iterator[Line]:
    note = _identical(group, tensors)
    head = _head(group.ranks, look)
    if not group.text:  # a statement that ran everywhere and printed nothing
        yield from _cut_line(group.cut, "")
    elif "\n" not in group.text:
        rows = list(_beside((head, "rank"), len(head) + 1, group.text, _style(group), look))
        yield from rows[:-1]
        yield [*rows[-1], "  ", *note] if note else rows[-1]
        yield from _cut_line(group.cut, " " * (len(head) + 1))
    else:
        yield [(head, "dim"), " ", *note] if note else [(head, "dim")]
        yield from _plain(group, look)


def _identical(group: AnswerGroup, tensors: TensorSummary | None) -> list[Piece]:
    if tensors is None or not tensors.same or not isinstance(group.value, Tensor) or len(group.members) < 2:
        return []
    return [("identical", "dim")]


def _listed(groups: Sequence[AnswerGroup], most: int, look: TerminalStyle) -> Iterator[Line]:
    """Texts of one line, below one another."""
    front, left, back = _ends(groups, most, look)
    heads = [_head(group.ranks, look) for group in (*front, *back)]
    wide = max(map(len, heads)) + 2
    for at, (head, group) in enumerate(zip(heads, (*front, *back), strict=True)):
        if left and at == len(front):
            yield (_more(left),)
        yield from _beside((head, "rank"), wide, group.text or "(nothing)", _style(group), look)
        yield from _cut_line(group.cut, " " * wide)


def _blocks(
    groups: Sequence[AnswerGroup],
    which: Sequence[int],
    diff: AnswerDiff | None,
    tensors: TensorSummary | None,
    look: TerminalStyle,
) -> Iterator[Line]:
    """Long texts: each below its ranks, and nearly equal ones as one."""
    joined = set() if diff is None else set(diff.groups[1:])
    listed = [at for at in which if at not in joined]
    front, left, back = _ends(listed, _FEW_TEXTS, look)
    for index, at in enumerate((*front, *back)):
        if left and index == len(front):
            yield (_more(left),)
        group = groups[at]
        head = _head(group.ranks, look)
        if diff is not None and at == diff.groups[0]:
            yield from _diff_lines(diff, look)
        elif "\n" not in group.text:
            yield from _beside((head, "rank"), len(head) + 1, group.text or "(nothing)", _style(group), look)
            yield from _cut_line(group.cut, " " * (len(head) + 1))
        else:
            note = _identical(group, tensors)
            yield [(head, "rank"), " ", *note] if note else [(head, "rank")]
            yield from (("  ", *line) for line in _plain(group, _narrower(look, 2)))


def _diff_lines(diff: AnswerDiff, look: TerminalStyle) -> Iterator[Line]:
    """The common text, with the ranks beside the lines in which they differ."""
    yield ((_head(diff.ranks, look), "rank"),)
    style = "bad" if diff.error else ""
    shown = {at: _ends(sides, _FEW_NUMBERS, look) for at, sides in diff.sides.items()}
    heads = {
        side: _head(side.ranks, look, _GUTTER_CHARACTERS)
        for front, _, back in shown.values()
        for side in (*front, *back)
    }
    wide = max(map(len, heads.values())) + 2
    for at, line in enumerate(diff.lines):
        if at not in shown:
            yield from (("  ", *rest) for rest in _beside("", wide, line, style, _narrower(look, 2)))
            continue
        front, left, back = shown[at]
        for index, side in enumerate((*front, *back)):
            if left and index == len(front):
                yield ("  ", _more(left))
            own = style or ("" if index == 0 and _leads(front) else "warn")
            for rest in _beside((heads[side], "rank"), wide, side.text, own, _narrower(look, 2)):
                yield ("  ", *rest)
    yield from _cut_line(diff.cut, "  ")


def _leads(sides: Sequence[AnswerSide]) -> bool:
    """Whether the first side is larger than the next: else no side is the odd one."""
    return len(sides) < 2 or len(sides[0].members) > len(sides[1].members)


def _number_lines(numbers: NumberSummary, look: TerminalStyle) -> Iterator[Line]:
    low, high = numbers.low, numbers.high
    if low is not None and high is not None and low.value != high.value:
        least, most = figure_texts([low.value, high.value])
        parts = [f"min {least} ({_named(low.ranks, look)})", f"max {most} ({_named(high.ranks, look)})"]
        if numbers.mean is not None:
            parts.append(f"mean {figure_texts([numbers.mean])[0]}")
        yield from _packed(parts, look)
    listed: set[Figure] = set()
    if numbers.usual is not None:
        few = numbers.differs[:_VALUES_SHOWN]
        listed = {share.value for share in few}
        texts = figure_texts([numbers.usual.value, *(share.value for share in few)])[1:]
        more = ", …" if len(few) < len(numbers.differs) else ""
        who = RankSet(rank for share in numbers.differs for rank in share.members)
        style = "bad" if any(isinstance(value, str) for value in listed) else "warn"
        text = f"{_named(who, look)} {_differ(who)}: {', '.join(texts)}{more}"
        yield from _sentence(text, style, _SUMMARY, look)
    if numbers.nan and "nan" not in listed:
        yield from _sentence(f"nan on {_named(numbers.nan, look)}", "bad", _SUMMARY, look)
    if numbers.inf and not listed & {"inf", "-inf"}:
        yield from _sentence(f"inf on {_named(numbers.inf, look)}", "bad", _SUMMARY, look)


def _tensor_lines(tensors: TensorSummary, table: bool, look: TerminalStyle) -> Iterator[Line]:
    if table:
        yield from _table(tensors, look)
    for name in LAYOUT:
        if name in tensors.differing:
            text = f"{name} differs: {_sides_text(tensors.layouts, name, look)}"
            yield from _sentence(text, "warn", "  ", look)
    if table and tensors.usual is not None and tensors.differs:
        yield from _sentence(_odd_text(tensors, tensors.usual, look), "warn", "  ", look)
    hidden = table and len(tensors.rows) > _FEW_NUMBERS and not look.full
    if tensors.same or hidden:
        for name, ranks in zip(COUNTS, (tensors.nan, tensors.inf), strict=True):
            if ranks:
                yield from _sentence(f"{name} on {_named(ranks, look)}", "bad", "  ", look)


def _table(tensors: TensorSummary, look: TerminalStyle) -> Iterator[Line]:
    """One row per content."""
    front, left, back = _ends(tensors.rows, _FEW_NUMBERS, look)
    shown = (*front, *back)
    found = [row.tensor for row in shown]
    names = ["shape", "dtype", *(name for name in ("type", "device") if name in tensors.differing)]
    names += [name for name in FIGURES if any(getattr(tensor, name) is not None for tensor in found)]
    names += [name for name in COUNTS if any(getattr(tensor, name) for tensor in found)]
    cells = {name: _column(tensors, found, name) for name in names}
    remarks = ["; ".join(filter(None, (tensor.local, tensor.note))) for tensor in found]
    rows: list[list[Piece]] = [[(name, "dim") for name in ("ranks", *names, "")]]
    for at, row in enumerate(shown):
        rows.append([(_head(row.ranks, look), "rank"), *(cells[name][at] for name in names), (remarks[at], "dim")])
    right = [at for at, name in enumerate(names, 1) if name in FIGURES or name in COUNTS]
    for at, line in enumerate(columns(rows, right=right)):
        if left and at == len(front) + 1:
            yield ("  ", _more(left))
        yield line if any(remarks) else line[:-2]  # an empty last cell and the gap before it


def _column(tensors: TensorSummary, found: Sequence[Tensor], name: str) -> list[Piece]:
    values = [getattr(tensor, name) for tensor in found]
    if name in FIGURES:
        texts = figure_texts(values)
    elif name in COUNTS:
        texts = ["-" if value is None else f"{value:,}" for value in values]
    else:
        texts = [_layout_text(value) for value in values]
    usual = _usual(tensors.rows, name)
    return [(text, _cell_style(value, name, usual)) for text, value in zip(texts, values, strict=True)]


def _cell_style(value: object, name: str, usual: list[object]) -> str:
    if (name in FIGURES and isinstance(value, str)) or (name in COUNTS and value):
        return "bad"
    return "" if value in usual else "warn"


def _usual(rows: Sequence[TensorRow], name: str) -> list[object]:
    """The value of more than half of the ranks in a column; empty where no value is that common."""
    counts: dict[object, int] = {}
    for row in rows:
        value = getattr(row.tensor, name)
        counts[value] = counts.get(value, 0) + len(row.members)
    total = sum(counts.values())
    return [value for value, number in counts.items() if 2 * number > total]


def _sides_text(layouts: Sequence[TensorRow], name: str, look: TerminalStyle) -> str:
    """``[4, 8] on 0-2, [4, 7] on 3``."""
    sides: dict[str, list[int]] = {}
    for row in layouts:
        sides.setdefault(_layout_text(getattr(row.tensor, name)), []).extend(row.members)
    front, left, back = _ends(list(sides.items()), _VALUES_SHOWN * 2, look)
    texts = [f"{text} on {_short(RankSet(ranks), look)}" for text, ranks in (*front, *back)]
    if left:
        texts.insert(len(front), f"… {left:,} more")
    return ", ".join(texts)


def _odd_text(tensors: TensorSummary, usual: TensorRow, look: TerminalStyle) -> str:
    odd = [row for row in tensors.rows if row is not usual]
    detail = f" ({_against(odd[0].tensor, usual.tensor)})" if len(odd) == 1 else ""
    return f"{_named(tensors.differs, look)} {_differ(tensors.differs)} from the others{detail}"


def _against(odd: Tensor, usual: Tensor) -> str:
    """The most telling difference of two tensors."""
    for name in LAYOUT:
        one, other = getattr(odd, name), getattr(usual, name)
        if one != other:
            return f"{name} {_layout_text(one)} against {_layout_text(other)}"
    for name in COUNTS:
        one, other = getattr(odd, name), getattr(usual, name)
        if one != other and one is not None and other is not None:
            return f"{one:,} {name} against {other:,}" if other else f"{one:,} {name} against none"
    pairs = [(name, getattr(odd, name), getattr(usual, name)) for name in FIGURES]
    apart = [pair for pair in pairs if pair[1] != pair[2] and None not in pair[1:]]
    if not apart:
        return "same figures, other contents"
    # The three have the same unit, so the widest gap is the most telling.
    name, one, other = max(apart, key=lambda pair: _distance(pair[1], pair[2]))
    texts = figure_texts([one, other])
    return f"{name} {texts[0]} against {texts[1]}"


def _distance(a: Figure, b: Figure) -> float:
    apart = None if isinstance(a, str) or isinstance(b, str) else gap(a, b)
    try:
        return float(apart) if apart is not None else float("inf")
    except OverflowError:
        return float("inf")


def figure_texts(values: Sequence[Figure | None]) -> list[str]:
    """Numbers with as few digits as tell different ones apart, at least four.

    >>> figure_texts([0.123456789, 0.123456999, None, "nan"])
    ['0.1234568', '0.123457', '-', 'nan']
    """
    distinct = len(set(values))
    for digits in range(4, 18):
        texts = [_figure_text(value, digits) for value in values]
        if len(set(texts)) == distinct:
            break
    return texts


def _figure_text(value: Figure | None, digits: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) < 10**20:
        return str(value)
    try:
        return f"{float(value):.{digits}g}"
    except OverflowError:
        text = str(value)
        return f"{text[:digits]}… ({len(text.lstrip('-')):,} digits)"


def _layout_text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if value else "?"


def _style(group: AnswerGroup) -> str:
    if group.error:
        return "bad"
    if group.late or not group.text:
        return "dim"
    return "bad" if isinstance(group.value, Number) and isinstance(group.value.value, str) else ""


def _ends(found: Sequence[_T], most: int, look: TerminalStyle) -> tuple[Sequence[_T], int, Sequence[_T]]:
    """All, or the first few, the number of those between, and the last few."""
    if look.full or len(found) <= most:
        return found, 0, ()
    return found[:_ENDS], len(found) - 2 * _ENDS, found[-_ENDS:]


def _more(left: int) -> Piece:
    return (f"… {left:,} more", "dim")


def _beside(head: Piece, wide: int, text: str, style: str, look: TerminalStyle) -> Iterator[Line]:
    """A text with its ranks before it; one that is too long for a line continues below itself."""
    pad = " " * (wide - len(text_of((head,))))
    for index, part in enumerate(_laid(text, max(look.width - wide, _LEAST_ROOM_CHARACTERS) if look.width else 0)):
        yield [head, pad, (part, style)] if index == 0 else [" " * wide, (part, style)]


def _laid(text: str, room: int) -> Iterator[str]:
    """The lines of a text, broken at the width: an answer must not lose its end."""
    for line in text.split("\n"):
        line = line.rstrip("\r").expandtabs()
        if room <= 0 or len(line) <= room:
            yield line
        else:
            yield from (line[at : at + room] for at in range(0, len(line), room))


def _packed(parts: Iterable[str], look: TerminalStyle) -> Iterator[Line]:
    """Facts on one line, or on more where the terminal is narrow."""
    line = ""
    for part in parts:
        if line and look.width and len(_SUMMARY) + len(line) + 2 + len(part) > look.width:
            yield (_SUMMARY, line)
            line = ""
        line = f"{line}  {part}" if line else part
    yield (_SUMMARY, line)


def _sentence(text: str, style: str, indent: str, look: TerminalStyle) -> Iterator[Line]:
    yield from (((line, style),) for line in wrap(text, look.width, indent))


def _cut_line(cut: int, indent: str) -> Iterator[Line]:
    if cut > 0:
        yield (indent, (f"… {plural(cut, 'character')} more (cut)", "dim"))


def _narrower(look: TerminalStyle, by: int) -> TerminalStyle:
    """The same style with less width; a width of 0 stays unlimited."""
    return replace(look, width=max(look.width - by, 1)) if look.width else look


def _short(ranks: RankSet, look: TerminalStyle, most: int = _SET_CHARACTERS) -> str:
    return short_text(ranks, None if look.full else most)


def _head(ranks: RankSet, look: TerminalStyle, most: int = _SET_CHARACTERS) -> str:
    return f"[{_short(ranks, look, most)}]"


def _named(ranks: RankSet, look: TerminalStyle) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {_short(ranks, look)}"


def _differ(ranks: RankSet) -> str:
    return "differs" if len(ranks) == 1 else "differ"
