"""What the agent in a rank may say: which fields are of which kind. Others are passed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from breakranks.errors import UsageError
from breakranks.rankset import MAX_RANK, RankSet

REMEDY = "Look from outside instead: breakranks stacks"
_LAST_TIME = 1e11  # seconds; what a calendar has
_MAX_NESTED_STATES = 2  # a state in an answer


def read(data: bytes | bytearray) -> dict[str, Any] | None:
    """A message, or None where it is not one of ours."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and is_sound(message) else None


def is_sound(message: Mapping[str, Any], depth: int = _MAX_NESTED_STATES) -> bool:
    """Whether every field that is known is what it should be. None stands for a field that is left out."""
    for name, value in message.items():
        check = _FIELDS.get(name)
        if value is not None and check is not None and not check(value):
            return False
    state = message.get("state")
    return not isinstance(state, dict) or (depth > 0 and is_sound(state, depth - 1))


def _number(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 63


def _count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 63


def _rank(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_RANK + 1


def _time(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) < _LAST_TIME


def _text(value: object) -> bool:
    return isinstance(value, str)


def _ranks(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        RankSet.parse(value)
    except (UsageError, ValueError):
        return False
    return True


def _state(value: object) -> bool:
    return isinstance(value, (str, dict))


def _values(value: object) -> bool:
    return isinstance(value, dict)


def _place(value: object) -> bool:
    """A place in a source: plain values, by which ranks are grouped."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), (str, int, type(None))) for name in ("file", "line", "function", "source", "op")
    )


def _probed(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and is_sound(one, 0) for one in value)


def _list(value: object) -> bool:
    return isinstance(value, list)


def _places(value: object) -> bool:
    return isinstance(value, list) and all(map(_place, value))


_FIELDS: dict[str, Callable[[object], bool]] = {
    "id": _number,
    "turn": _count,
    "rank": _rank,
    "world": _rank,
    "pid": _count,
    "consoles": _count,
    "cut": _count,
    "hit": _count,
    "since": _time,
    "state": _state,
    "role": _text,
    "reason": _text,
    "site": _text,
    "thread": _text,
    "host": _text,
    "text": _text,
    "stoppers": _ranks,
    "where": _place,
    "collective": _place,
    "frames": _places,
    "inside": _values,
    "values": _probed,
    "notes": _list,
    "words": _list,
}
