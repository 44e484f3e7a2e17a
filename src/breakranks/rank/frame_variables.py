"""Values of local variables of a frame that runs in another thread, as short text, without a trace of the reading.

``frame.f_locals`` is not used up to Python 3.12: it stores a dictionary in the frame, which keeps the values until the
function returns, and is the very dictionary that the job has if it called ``locals()``. Python 3.12 has a C function
that reads one variable. 3.10 and 3.11 have nothing of the kind, so nothing is read there.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any

_OPTIMIZED = 0x1  # the flag of code whose variables are in slots: that of a function
_MAX_CHARACTERS = 512
_MAX_ITEMS = 32
_MAX_DEPTH = 2
_MAX_BITS = 64
_PLAIN = (bool, int, float, str)

Reader = Callable[[FrameType, str], Any]


class _Unset:
    """The value of a variable that is not set, or cannot be read."""


def are_readable() -> bool:
    """Whether variables can be read in this Python. Without them, nothing is known of whether they change."""
    return _reader() is not None


def texts(frame: FrameType, names: frozenset[str] | None, limit: int) -> dict[str, str]:
    """Return the variables of a function's frame that are plain values. ``names``: only these; None: all of them."""
    code = frame.f_code
    read = _reader()
    found: dict[str, str] = {}
    if read is None or not code.co_flags & _OPTIMIZED:
        return found
    for name in code.co_varnames[:limit]:
        if names is None or name in names:
            text = _text(read(frame, name), _MAX_DEPTH)
            if text:
                found[name] = text
    return found


# ---- text


def _text(value: Any, depth: int) -> str:
    """Return the text of a plain value or a small container of them, else "". No code of the job is called."""
    kind = type(value)
    if value is None:
        return "None"
    if kind is str:
        return repr(value[:_MAX_CHARACTERS])
    if kind is int and value.bit_length() >= _MAX_BITS:
        return ""
    if kind in _PLAIN_KINDS:
        return repr(value)
    if depth and (kind is list or kind is tuple):
        return _items_text(value[:_MAX_ITEMS], depth, "[]" if kind is list else "()")
    if depth and kind is dict:
        return _dictionary_text(value, depth)
    return ""


class _Kinds:
    """Whether a type is one of the plain ones. Not with ``in`` on a tuple: that calls ``__eq__`` of a metaclass."""

    def __contains__(self, kind: object) -> bool:
        return any(kind is plain for plain in _PLAIN)


_PLAIN_KINDS = _Kinds()


def _items_text(items: Any, depth: int, ends: str) -> str:
    parts = [_text(item, depth - 1) for item in items]
    return f"{ends[0]}{', '.join(parts)}{ends[1]}"[:_MAX_CHARACTERS] if all(parts) else ""


def _dictionary_text(value: dict[Any, Any], depth: int) -> str:
    try:
        items = list(islice(value.items(), _MAX_ITEMS))
    except RuntimeError:  # its thread has just changed it
        return ""
    parts = [(_text(key, 0), _text(item, depth - 1)) for key, item in items]
    if not all(key and item for key, item in parts):
        return ""
    return f"{{{', '.join(f'{key}: {item}' for key, item in parts)}}}"[:_MAX_CHARACTERS]


# ---- variables


def _reader() -> Reader | None:
    """Return the function that reads a variable of a frame in this Python, or None if there is none that is safe."""
    if sys.implementation.name != "cpython" or sys.version_info < (3, 12):
        return None
    return _from_view if sys.version_info >= (3, 13) else _from_c


def _from_view(frame: FrameType, name: str) -> Any:
    try:
        return frame.f_locals[name]
    except KeyError:
        return _Unset


def _from_c(frame: FrameType, name: str) -> Any:
    try:
        return _get_var()(frame, name)
    except NameError:
        return _Unset


@functools.cache
def _get_var() -> Any:
    library = ctypes.PyDLL(None)  # a private object: the types set here do not affect other users of ctypes
    function = library.PyFrame_GetVar
    function.restype, function.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.py_object)
    return function
