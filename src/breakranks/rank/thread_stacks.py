"""The stacks of all threads of this process, for a console that may not trace it.

Read in the agent's thread, while the other threads run or are blocked in C. No code of the job is called: names of
threads are read from dictionaries, and only values of exact builtin types are written as text.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from types import CodeType, FrameType
from typing import Any

from breakranks.rank import frame_variables, thread_calls
from breakranks.rank_messages import FrameVariables, StacksEvent, StacksRequest, ThreadCall, ThreadStack

_MAX_THREADS = 2000
_MAX_FRAMES = 2000  # per thread; of a deeper stack the innermost and the outermost half
_MAX_ALL_FRAMES = 200_000
_MAX_VARIABLES = 5000
_MAX_NAME_CHARACTERS = 200
_MAX_PATH_CHARACTERS = 4096
_THREAD_BYTES = 1024  # of pthread's description of a thread, which has the id of the thread in its first part
_DICTIONARY: Any = threading.Thread.__dict__["__dict__"]  # not that of a subclass, which may be a property


def event_of(request: StacksRequest) -> StacksEvent:
    """Return the stacks of all threads that run Python, this one included."""
    tables = _Tables(_Wanted(request) if request.variables and frame_variables.are_readable() else None)
    known = _known_threads()
    tids = _TidReader(known)
    # A variable of this function must not refer to its own frame: the two would keep each other, and what the frames of
    # the job refer to, until Python's collector runs.
    tops = sys._current_frames()
    own = threading.get_ident()
    tops.pop(own, None)
    try:
        for ident in sorted(tops, key=lambda ident: ident != threading.main_thread().ident):
            tables.add(tids.tid(ident), known.get(ident, (0, ""))[1], tops.pop(ident))
    finally:
        tops.clear()
    tables.add(tids.tid(own), known.get(own, (0, ""))[1], sys._getframe(), plain=True)
    return tables.event(request.id, thread_calls.calls_of(request.pointers) if request.calls else ())


class _Tables:
    """The tables of a StacksEvent."""

    def __init__(self, wanted: _Wanted | None) -> None:
        self._wanted = wanted
        self._codes: dict[tuple[str, str], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._threads: list[ThreadStack] = []
        self._left = _MAX_ALL_FRAMES
        self._variables_left = _MAX_VARIABLES
        self._cut = 0

    def add(self, tid: int, name: str, frame: FrameType | None, *, plain: bool = False) -> None:
        """Add a thread by its innermost frame. ``plain``: without variables."""
        if len(self._threads) >= _MAX_THREADS or self._left <= 0:
            self._cut += 1
            return
        frames, cut = _outermost_first(frame, min(_MAX_FRAMES, self._left))
        del frame
        self._cut += cut
        self._left -= len(frames)
        row: list[int] = []
        variables: list[FrameVariables] = []
        for depth, at in enumerate(frames):
            code = at.f_code
            row += (self._code(code), at.f_lineno or 0)
            if self._wanted is not None and not plain and self._variables_left > 0:
                found = self._wanted.variables(at, code, self._variables_left)
                if found is not None:
                    self._variables_left -= len(found)
                    variables.append(FrameVariables(depth=depth, names=tuple(found), texts=tuple(found.values())))
        stack = self._stacks.setdefault(tuple(row), len(self._stacks))
        self._threads.append(ThreadStack(tid=tid, name=name, stack=stack, variables=tuple(variables)))

    def _code(self, code: CodeType) -> int:
        key = (_text(code.co_name, _MAX_NAME_CHARACTERS), _text(code.co_filename, _MAX_PATH_CHARACTERS))
        return self._codes.setdefault(key, len(self._codes))

    def event(self, number: int | None, calls: tuple[ThreadCall, ...]) -> StacksEvent:
        return StacksEvent(
            id=number,
            functions=tuple(function for function, _ in self._codes),
            files=tuple(file for _, file in self._codes),
            stacks=tuple(self._stacks),
            threads=tuple(self._threads),
            calls=calls,
            cut=self._cut,
        )


def _outermost_first(frame: FrameType | None, limit: int) -> tuple[list[FrameType], int]:
    """Return the frames of a stack, and how many were left out of its middle."""
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    frames.reverse()
    cut = max(len(frames) - limit, 0)
    if cut:
        outer = limit // 2
        del frames[outer : outer + cut]
    return frames, cut


def _text(value: Any, limit: int) -> str:
    return value[:limit] if type(value) is str else "?"


# ---- variables


class _Wanted:
    """Which variables of a frame are requested."""

    def __init__(self, request: StacksRequest) -> None:
        self._library = re.compile(request.library) if request.library else None
        self._kept: list[tuple[str, str, str]] = []
        for text in request.kept:
            function, path, name = text.split("|")
            self._kept.append((function, path, name))
        self._by_code: dict[tuple[str, str], frozenset[str] | None] = {}

    def variables(self, frame: FrameType, code: CodeType, limit: int) -> dict[str, str] | None:
        """Return the variables of a frame as text, or None where none of such a frame are requested."""
        key = (code.co_name, code.co_filename)
        if not type(key[0]) is type(key[1]) is str:
            return None
        if key not in self._by_code:
            self._by_code[key] = self._names(*key)
        names = self._by_code[key]
        if names is not None and not names:
            return None
        return frame_variables.texts(frame, names, limit)

    def _names(self, function: str, file: str) -> frozenset[str] | None:
        """Return the requested names of a function's variables; None: all."""
        if file and self._library is not None and self._library.search(file) is None:
            return None
        return frozenset(name for kept, path, name in self._kept if kept in ("", function) and path in file)


# ---- threads


def _known_threads() -> dict[int, tuple[int, str]]:
    """Return kernel id and name of each thread that ``threading`` knows. A class of the job may override both."""
    active: Any = getattr(threading, "_active", None)
    found = {}
    for ident, thread in list(active.items()) if type(active) is dict else ():
        values = _values(thread)
        tid = values.get("_native_id")
        if type(ident) is int:
            found[ident] = (
                tid if type(tid) is int and tid > 0 else 0,
                _text(values.get("_name"), _MAX_NAME_CHARACTERS),
            )
    main = threading.main_thread().ident
    if main in found:
        found[main] = (os.getpid(), found[main][1])
    return found


def _values(thread: object) -> dict[str, Any]:
    try:
        values = _DICTIONARY.__get__(thread)
    except TypeError:  # not a Thread
        return {}
    return values if type(values) is dict else {}


class _TidReader:
    """The kernel's ids of threads. Those that C++ has started, such as autograd's, are unknown to ``threading``.

    The ident of such a thread is the address of pthread's description of it, which has the id. Where in it is measured
    on this thread. It is read as a file: the thread may end meanwhile, and its memory be unmapped.
    """

    def __init__(self, known: dict[int, tuple[int, str]]) -> None:
        self._known = known
        self._offset: int | None = None

    def tid(self, ident: int) -> int:
        known = self._known.get(ident, (0, ""))[0]
        return known or (self._read(ident) if ident > 0 else 0)

    def _read(self, ident: int) -> int:
        try:
            handle = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            if self._offset is None:
                self._offset = _offset(os.pread(handle, _THREAD_BYTES, threading.get_ident()))
            if self._offset < 0:
                return 0
            tid = int.from_bytes(os.pread(handle, 4, ident + self._offset), sys.byteorder)
        except (OSError, OverflowError):
            return 0
        finally:
            os.close(handle)
        return tid if os.path.exists(f"/proc/self/task/{tid}") else 0


def _offset(description: bytes) -> int:
    """Return where the description of this thread has its id; -1 where that is not clear."""
    size = ctypes.sizeof(ctypes.c_int)
    own = threading.get_native_id()
    found = [
        at
        for at in range(0, len(description) - size + 1, size)
        if int.from_bytes(description[at : at + size], sys.byteorder) == own
    ]
    return found[0] if len(found) == 1 else -1
