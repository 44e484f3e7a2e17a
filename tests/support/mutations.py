"""Mutations of files and messages: of their bytes, and of the values in them."""

from __future__ import annotations

import random
from typing import Any

DEEP = 2000
_NUMBERS = (0, 1, -1, 2, 255, 1 << 31, -(1 << 31), (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, 1e308, -1e308, 0.5)
_WHOLE = (0, 1, -1, 2, 255, 1 << 31, -(1 << 31), 1 << 62, (1 << 63) - 1)
_TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "x" * 5000,
    "\0",
    "\n",
    "é",
    "\U0001f600",
    "nan",
    "0-99999999",
    "0-3,x",
    "../..",
    "{}",
    "[[",
)
_BYTES = (
    b"\0",
    b"\xff",
    b"\x80",
    b"\xc3",
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b",",
    b":",
    b"\n",
    b"9" * 30,
    b"-",
    b"e999",
    b"\\u",
)


def mutated_bytes(chance: random.Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """Change bits and bytes, remove, repeat or truncate pieces, or insert some from another file, at random places."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(found) + 1)
        size = min(chance.choice((1, 1, 2, 4, 16, 64, 1024)), len(found) - at)
        kind = chance.randrange(8)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = chance.randrange(256)
        elif kind == 2:
            del found[at : at + size]
        elif kind == 3:
            found[at:at] = found[at : at + size] * chance.choice((1, 1, 2, 50))
        elif kind == 4:
            found[at:at] = chance.choice(_BYTES)
        elif kind == 5:
            found[at : at + size] = chance.randbytes(size)
        elif kind == 6 and others:
            other = chance.choice(others)
            begin = chance.randrange(len(other) + 1)
            found[at:at] = other[begin : begin + chance.choice((8, 64, 512))]
        else:
            del found[at:]
    return bytes(found)


def mutated_value(chance: random.Random, value: Any) -> Any:
    """Return the value with one of its parts, at any depth, replaced, removed or repeated."""
    if chance.random() < 0.05 or not isinstance(value, (dict, list, tuple)) or not value:
        return _other(chance, value)
    if isinstance(value, dict):
        key = chance.choice(list(value))
        kind = chance.randrange(16)
        if kind == 0:
            return {name: one for name, one in value.items() if name != key}
        if kind == 1:
            return {**value, str(chance.choice(_TEXTS)): value[key]}
        return {**value, key: mutated_value(chance, value[key])}
    at = chance.randrange(len(value))
    kind = chance.randrange(12)
    if kind == 0:
        changed = [*value[:at], *value[at + 1 :]]
    elif kind == 1:
        changed = [*value[:at], *[value[at]] * chance.choice((2, 2, 40)), *value[at + 1 :]]
    else:
        changed = [*value[:at], mutated_value(chance, value[at]), *value[at + 1 :]]
    return type(value)(changed)


def _other(chance: random.Random, value: Any) -> Any:
    kind = chance.randrange(12)
    if isinstance(value, bool):
        return chance.choice((not value, None, 1, "true"))
    if isinstance(value, int) and kind < 9:
        return chance.choice((value + 1, value - 1, -value, value * 1000, *_WHOLE))
    if isinstance(value, float) and kind < 9:
        return chance.choice((-value, value * 1e6, value + 0.5, 0.0, 1e308, -1.0, float("nan"), float("inf")))
    if isinstance(value, str) and kind < 9:
        return chance.choice((value + "x", value[1:], value * 3, value.upper(), *_TEXTS))
    if isinstance(value, bytes):
        return mutated_bytes(chance, value)
    if kind == 11:
        return nested(chance.choice((3, 100, DEEP)))
    return chance.choice((None, True, [], {}, "", 0, "x", [None], {"": None}, *_NUMBERS, *_TEXTS))


def nested(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found
