"""JSON as typed values: each field is checked against its type.

The types are dataclasses, or classes that name their fields in ``KINDS``, as the messages of a rank do.

What comes from a host or a rank is not trusted. The standard library only, because a host has nothing else.
"""

from __future__ import annotations

import base64
import functools
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")


def from_plain(kind: type[T], plain: dict[str, Any]) -> T:
    """Return a typed value from a JSON object. Unknown fields are ignored.

    Raises ValueError for a field of another type, or a missing one.
    """
    of_field: Any = kind  # mypy does not take a class for hashable
    hints = _hints(of_field)
    try:
        return kind(**{name: _checked(value, hints[name]) for name, value in plain.items() if name in hints})
    except TypeError as error:  # a field that has no default is missing
        raise ValueError(str(error)) from None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind.KINDS
    return {name: hints[name] for name in names}


def _checked(value: Any, hint: Any) -> Any:
    """Return a value of JSON as the type of its field. Raises ValueError where it has another type."""
    kind, items = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return value
    if kind in (Union, UnionType):
        return _of_union(value, items)
    if kind is tuple and isinstance(value, list):
        each = items[:1] * len(value) if items[-1] is Ellipsis else items
        if len(each) == len(value):
            return tuple(map(_checked, value, each))
    elif kind is list and isinstance(value, list):
        return [_checked(item, items[0]) for item in value]
    elif kind is dict and isinstance(value, dict):
        return {name: _checked(item, items[1]) for name, item in value.items()}
    elif kind is Literal and value in items:
        return value
    elif is_typeddict(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        return {name: _checked(item, hints[name]) for name, item in value.items() if name in hints}
    elif isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "KINDS")) and isinstance(value, dict):
        return from_plain(kind, value)
    elif kind is bytes and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    elif type(value) is kind:
        return value
    elif kind is float and type(value) is int:
        return float(value)
    raise ValueError(f"{str(value)[:40]!r} is not of the type {hint}")


def _of_union(value: Any, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        try:
            return _checked(value, kind)
        except ValueError:
            continue
    raise ValueError(f"{str(value)[:40]!r} is of none of the types {kinds}")
