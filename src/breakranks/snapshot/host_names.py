"""Host names folded as ClusterShell does: ``n[1-3,7]``. The cost is linear except for sorting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"(\d+)")


def fold(names: Iterable[str]) -> str:
    """Return host names as one short text. Padding is kept; a name without a number is kept as it is.

    >>> fold(["n3", "n1", "n2", "login", "gpu01", "gpu02", "r1n2", "r1n1", "r2n1", "r2n2"])
    'gpu[01-02],login,n[1-3],r[1-2]n[1-2]'
    """
    shapes: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in dict.fromkeys(names):
        # An IPv6 address: its digits are not decimal numbers.
        parts = _NUMBER.split(name) if ":" not in name else [name]
        shapes.setdefault(tuple(parts[::2]), []).append(tuple(parts[1::2]))
    found: list[str] = []
    for texts, numbers in sorted(shapes.items()):
        for fields in _folded(numbers, len(texts) - 1):
            found.append(texts[0] + "".join(f"{field}{text}" for field, text in zip(fields, texts[1:], strict=True)))
    return ",".join(found)


def _folded(rows: list[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Return rows of numbers with those folded that differ in one place only, the last place first."""
    for place in reversed(range(width)):
        alike: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            alike.setdefault(row[:place] + row[place + 1 :], []).append(row[place])
        rows = [(*rest[:place], _numbers(values), *rest[place:]) for rest, values in alike.items()]
    return sorted(rows, key=_order)


def _order(row: Sequence[str]) -> tuple[tuple[int, str], ...]:
    return tuple((int(_NUMBER.findall(field)[0]), field) for field in row)


def _numbers(values: list[str]) -> str:
    if len(values) == 1:
        return values[0]
    padded = {len(value) for value in values if value.startswith("0") and len(value) > 1}
    by_width: dict[int, list[str]] = {}
    for value in values:
        by_width.setdefault(len(value) if len(value) in padded else 0, []).append(value)
    return "[" + ",".join(part for width in sorted(by_width) for part in _runs(by_width[width])) + "]"


def _runs(values: list[str]) -> list[str]:
    ordered = sorted(values, key=int)
    runs: list[list[str]] = []
    for value in ordered:
        if runs and int(value) == int(runs[-1][-1]) + 1:
            runs[-1] = [runs[-1][0], value]
        else:
            runs.append([value])
    return ["-".join(run) for run in runs]


def without_name(text: str, name: str) -> str:
    """Return a text with a NUL in place of the name of a host, so that equal reasons of hosts are equal texts.

    >>> without_name("ssh: connect to host n port 22: no route", "n")
    'ssh: connect to host \\x00 port 22: no route'
    """
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", "\0", text)


def with_name(text: str, name: str) -> str:
    """Return a text of :func:`without_name` with the name of a host, or of several."""
    return text.replace("\0", name)
