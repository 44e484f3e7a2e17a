"""English: singular and plural, lists. The only place that knows which verb a number takes."""

from __future__ import annotations

from collections.abc import Sequence

_IRREGULAR = {"are": "is", "have": "has", "do": "does"}


def verb(number: int, plain: str) -> str:
    """A verb as ``number`` of them do it.

    >>> verb(1, "wait"), verb(2, "wait"), verb(1, "are"), verb(1, "have")
    ('waits', 'wait', 'is', 'has')
    """
    return plain if number != 1 else _IRREGULAR.get(plain, f"{plain}s")


def pronoun(number: int, one: str = "it", many: str = "them") -> str:
    return one if number == 1 else many


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
