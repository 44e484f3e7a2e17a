"""Plain values from typed ones."""

from __future__ import annotations

import binascii
from typing import Any

from ._struct import Struct

_AS_IS = (str, int, float, bool, type(None))


def to_builtins(value: Any, *, builtin_types: tuple[type, ...] = ()) -> Any:
    """What JSON has, but tuples stay tuples and keys stay what they are. ``builtin_types`` stay too."""

    def below(one: Any) -> Any:
        return to_builtins(one, builtin_types=builtin_types)

    kind = type(value)
    if kind in _AS_IS or kind in builtin_types:
        return value
    if kind is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return tuple(below(one) for one in value)
    if isinstance(value, (list, set, frozenset)):
        return [below(one) for one in value]
    if isinstance(value, dict):
        return {below(key): below(one) for key, one in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return binascii.b2a_base64(value, newline=False).decode()
    if isinstance(value, Struct):
        return plain_struct(value, below)
    raise TypeError(f"Encoding objects of type {kind.__name__} is unsupported")


def plain_struct(value: Any, below: Any) -> Any:
    cls = type(value)
    tag = cls.__struct_tag__
    values = [below(one) for one in value.__struct_values__()]
    if cls.__struct_options__["array_like"]:
        return values if tag is None else [tag[1], *values]
    pairs = dict(zip(cls.__struct_fields__, values, strict=True))
    return pairs if tag is None else {tag[0]: tag[1], **pairs}
