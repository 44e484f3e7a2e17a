"""Two timeouts of gloo that have no way to them from Python.

Send and receive take that of gloo's own context, which is set once, when the group is made. And under
TORCH_DISTRIBUTED_DEBUG=DETAIL each backend has a gloo group beside it, which meets before every collective. They are
looked up in memory, by reads that can fail but not crash, and are given out only if every object on the way was told by
its vtable and the number there is the one that it must be.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

GLOO = "_ZTVN4c10d16ProcessGroupGlooE"
TRANSPORTS = ("_ZTVN4gloo9transport3tcp7ContextE", "_ZTVN4gloo9transport3tcp3tls7ContextE")
WORDS = 96  # of an object in C++ are looked through; those in question have some forty
MAGIC = 0x5A17C3E9


def hidden(backend: Any, wrapped: Any, kind: str, own: timedelta | None) -> Iterator[tuple[str, list[int]]]:
    """The addresses of timeouts that only memory has; none where anything is in doubt."""
    if kind == "Gloo":
        main = backend if wrapped is None else wrapped
        yield "gloo's send and receive", _looked_up(lambda memory: memory.transports(memory.object_of(main), own))
    if wrapped is not None:
        what = "DETAIL's own check before each collective"
        yield what, _looked_up(lambda memory: memory.helper(backend, wrapped))


def _looked_up(find: Callable[[_Memory], list[int]]) -> list[int]:
    try:
        with open("/proc/self/mem", "rb", buffering=0) as file:
            return find(_Memory(file.fileno()))
    except Exception:
        return []


class _Memory:
    """C++ objects of this process, as words."""

    # Where the timeout is in objects of a class, by its vtable: learned once, while it is the one that is expected.
    _learned: ClassVar[dict[int, int]] = {}

    def __init__(self, file: int) -> None:
        self._file = file

    def words(self, address: int, most: int = WORDS) -> tuple[int, ...]:
        try:
            data = os.pread(self._file, 8 * most, address)
        except (OSError, OverflowError):
            return ()
        return struct.unpack(f"={len(data) // 8}Q", data[: len(data) // 8 * 8])

    def first(self, address: int) -> int:
        """An object's vtable, where there is an object."""
        found = self.words(address, 1) if address > 4096 and address % 8 == 0 else ()
        return found[0] if found else 0

    def object_of(self, value: Any) -> int:
        """Where pybind11 keeps the C++ object: right after the head of the Python object."""
        return self.first(id(value) + object.__basicsize__)

    def helper(self, wrapper: Any, wrapped: Any) -> list[int]:
        """The timeouts of the gloo group beside a wrapped backend."""
        words = self.words(self.object_of(wrapper))
        helper = words[words.index(self.object_of(wrapped)) + 1]
        sample = sys.modules["torch.distributed.distributed_c10d"].ProcessGroupGloo._Options()
        sample._timeout = timedelta(milliseconds=MAGIC)
        layout = self.words(self.object_of(sample), 32)
        if self.first(helper) != _vtable(GLOO):
            return []
        options = next(word for word in self.words(helper) if self.first(word) == layout[0])
        at = layout.index(MAGIC)
        own = timedelta(milliseconds=self.words(options, at + 1)[at])
        return [options + 8 * at, *self.transports(helper, own)] if _plausible(own) else []

    def transports(self, group: int, own: timedelta | None) -> list[int]:
        """The timeouts of a gloo group's contexts, which it has in a vector of shared pointers."""
        if self.first(group) != _vtable(GLOO) or own is None:
            return []
        words = self.words(group)
        for start, end, room in zip(words, words[1:], words[2:], strict=False):
            if 0 < end - start <= 16 * WORDS and (end - start) % 16 == 0 and end <= room:
                contexts = self.words(start, (end - start) // 8)[::2]
                found = [self._transport(context, own) for context in contexts]
                if found and all(found):
                    return found
        return []

    def _transport(self, context: int, own: timedelta) -> int:
        known = {vtable for vtable in map(_vtable, TRANSPORTS) if vtable}
        for word in self.words(context, 16):
            vtable = self.first(word)
            if vtable in known:
                values = self.words(word, 16)
                if vtable not in self._learned:
                    expected = own // timedelta(milliseconds=1)
                    if values.count(expected) != 1:
                        return 0
                    self._learned[vtable] = values.index(expected)
                at = self._learned[vtable]
                return word + 8 * at if _plausible(timedelta(milliseconds=values[at])) else 0
        return 0


def _plausible(timeout: timedelta) -> bool:
    return timedelta(0) < timeout <= timedelta(days=3660)


@functools.cache
def _vtable(name: str) -> int:
    """The address that objects of a class begin with; before its functions a vtable has two words."""
    folder = os.path.dirname(sys.modules["torch"].__file__ or "")
    try:
        library = ctypes.CDLL(os.path.join(folder, "lib", "libtorch_cpu.so"), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.addressof(ctypes.c_char.in_dll(library, name)) + 16
    except (OSError, ValueError):
        return 0
