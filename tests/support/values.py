"""Changed copies of values."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

from breakranks.rank_messages import RankMessage, changed

T = TypeVar("T")


def replace(value: T, /, **changes: Any) -> T:
    """A copy with other fields, whichever way the type of the value is made."""
    given: Any = value
    if isinstance(given, tuple):
        return given._replace(**changes)  # type: ignore[attr-defined]
    if isinstance(given, msgspec.Struct):
        return msgspec.structs.replace(given, **changes)
    if isinstance(given, RankMessage):
        return changed(given, **changes)  # type: ignore[return-value]
    return dataclasses.replace(given, **changes)
