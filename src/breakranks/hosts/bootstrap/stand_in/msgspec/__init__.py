"""Stands in for the small part of msgspec that breakranks uses, on a host whose Python has none that loads.

What it writes is the same to the byte, and it reads the same. It is slower by far, which is fine for one host's ranks.
What is not here raises an error when a class is made or a type is first used, not in the middle of a look.
"""

from __future__ import annotations

from . import json, msgpack, structs
from ._convert import convert
from ._errors import DecodeError, EncodeError, MsgspecError, ValidationError
from ._plain import to_builtins
from ._struct import NODEFAULT, Struct, StructMeta, field

__version__ = "0.18.0"

__all__ = [
    "NODEFAULT",
    "DecodeError",
    "EncodeError",
    "MsgspecError",
    "Struct",
    "StructMeta",
    "ValidationError",
    "convert",
    "field",
    "json",
    "msgpack",
    "structs",
    "to_builtins",
]
