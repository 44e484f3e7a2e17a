"""The system calls that the threads of this process are in, for a console that may not read them from outside.

A process may always read its own ``/proc/self/task/TID/syscall``. What the calls mean, and where their arguments point
to memory that matters, only the console knows: it names what to read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from breakranks.rank_messages import ThreadCall

_MAX_THREADS = 500
_MAX_TEXT_BYTES = 512
_MAX_MEMORY_BYTES = 512
_PAGE_BYTES = 4096
_LAST_ADDRESS = 1 << 62


def calls_of(pointers: Iterable[str]) -> tuple[ThreadCall, ...]:
    """Return the call of each thread that is in one. ``pointers``: what is read with them, each "NUMBER:ARGUMENT:SIZE".

    >>> calls_of(["230:2:16"])  # 16 bytes at the third argument of clock_nanosleep  # doctest: +SKIP
    """
    wanted: dict[str, list[tuple[int, int]]] = {}
    for pointer in pointers:
        number, argument, size = pointer.split(":")
        wanted.setdefault(number, []).append((int(argument), min(int(size), _MAX_MEMORY_BYTES)))
    memory = _opened("/proc/self/mem")
    try:
        tids = sorted(map(int, os.listdir("/proc/self/task")))[:_MAX_THREADS]
        found = [_call(tid, wanted, memory) for tid in tids]
    finally:
        if memory >= 0:
            os.close(memory)
    return tuple(call for call in found if call is not None)


def _call(tid: int, wanted: dict[str, list[tuple[int, int]]], memory: int) -> ThreadCall | None:
    text = _text(f"/proc/self/task/{tid}/syscall")
    parts = text.split()
    if len(parts) < 7:  # it runs
        return None
    places = []
    for argument, size in wanted.get(parts[0], ()):
        address = int(parts[1 + argument], 16) if 0 <= argument < 6 else 0
        data = _memory(memory, address, size)
        if data:
            places.append((address, data))
    return ThreadCall(
        tid=tid, text=text, addresses=tuple(address for address, _ in places), memory=tuple(data for _, data in places)
    )


def _memory(handle: int, address: int, size: int) -> bytes:
    """Return what is at an address, up to the end of the last page that is mapped."""
    if handle < 0 or not 0 < address < _LAST_ADDRESS:
        return b""
    for length in (size, min(size, _PAGE_BYTES - address % _PAGE_BYTES)):
        try:
            return os.pread(handle, length, address)
        except OSError:
            continue
    return b""


def _text(path: str) -> str:
    handle = _opened(path)
    if handle < 0:
        return ""
    try:
        return os.read(handle, _MAX_TEXT_BYTES).decode("ascii", "replace").strip()
    except OSError:  # the thread has ended
        return ""
    finally:
        os.close(handle)


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
