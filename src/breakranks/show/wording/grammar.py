"""English grammar for findings: singular and plural, lists. No other module of the wording chooses the form of a
verb or a noun."""

from __future__ import annotations

from collections.abc import Sequence

_IRREGULAR = {"are": "is", "were": "was", "have": "has", "do": "does"}


def verb(number: int, plain: str) -> str:
    """Return a verb in the form for ``number`` subjects.

    >>> verb(1, "wait"), verb(2, "wait"), verb(1, "are"), verb(1, "have")
    ('waits', 'wait', 'is', 'has')
    """
    return plain if number != 1 else _IRREGULAR.get(plain, f"{plain}s")


def noun(number: int, name: str, many: str = "") -> str:
    """Return a noun in the form for ``number``, without the number.

    >>> noun(1, "rank"), noun(2, "rank"), noun(2, "process", "processes")
    ('rank', 'ranks', 'processes')
    """
    return name if number == 1 else many or f"{name}s"


def pronoun(number: int, name: str = "it", many: str = "them") -> str:
    return name if number == 1 else many


def all_of(number: int) -> str:
    """
    >>> all_of(2), all_of(3000)
    ('both', 'all 3,000')
    """
    return "both" if number == 2 else f"all {number:,}"


def its(number: int) -> str:
    return "its" if number == 1 else "their"


def listed(items: Sequence[str], conjunction: str = "and") -> str:
    """
    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {conjunction} {items[-1]}"
