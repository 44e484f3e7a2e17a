"""The threads of this process: their names, whether one is blocked in a system call, and the trace function of each.

Python lets a thread set only its own trace function. Up to 3.11 the C function below takes any thread. The offsets of
the fields in the interpreter's thread state are measured on the calling thread, so that no version is assumed.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate, chain, compress, repeat, takewhile
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, NamedTuple

_MAX_WORDS = 32  # of a thread state that are read; the fields are in the first 25 since 3.10
_OWN_PREFIX = "breakranks"
# Modules in which no thread is stopped: it might hold a lock that all others need.
_PASSED = ("threading", "importlib", "_frozen_importlib", "_frozen_importlib_external")


class ThreadUnreachable(Exception):
    """The trace functions of other threads cannot be read or set here; the text tells why."""


# ---- names


def main() -> int:
    return threading.main_thread().ident or 0


def name_of(ident: int) -> str:
    """Return the name of a thread in the program. Takes no lock."""
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return str(thread.name) if thread is not None else f"thread {ident}"


def native_of(ident: int) -> int:
    """Return the kernel's id of a thread, 0 if Python does not know it."""
    if ident == main():
        return os.getpid()
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return int(thread.native_id or 0) if thread is not None else 0


def is_ours(ident: int) -> bool:
    """Whether a thread is the agent's, or was started by it."""
    return name_of(ident).startswith(_OWN_PREFIX)


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread that runs Python; of the calling thread, the innermost outside of
    breakranks.

    A function whose variable refers to its own frame keeps all frames below it, and so the job's tensors, until
    Python's collector runs.
    """
    frames = sys._current_frames()
    frame: FrameType | None = frames.pop(threading.get_ident(), None)
    while frame is not None and of_ours(frame):
        frame = frame.f_back
    if frame is not None:
        frames[threading.get_ident()] = frame
    return frames


def others() -> dict[int, FrameType]:
    """Return the threads of the job that run Python, with the innermost frame of each."""
    return {ident: frame for ident, frame in current_frames().items() if not is_ours(ident)}


def stack_of(ident: int) -> list[FrameType]:
    """Return the frames of a thread, innermost first. The thread keeps running."""
    return list(stack(current_frames().get(ident)))


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def resting() -> list[FrameType]:
    """Return the frames of suspended generators and coroutines. Iterates over all objects of the process."""
    frames = []
    for value in gc.get_objects():
        kind = type(value)
        if kind is GeneratorType:
            frames.append(value.gi_frame)
        elif kind is CoroutineType:
            frames.append(value.cr_frame)
        elif kind is AsyncGeneratorType:
            frames.append(value.ag_frame)
    return [frame for frame in frames if frame is not None]


def of_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of breakranks."""
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.startswith("breakranks.")


def is_injected(stack: list[FrameType]) -> bool:
    """Whether a stack, innermost frame first, is of injected code: its outermost frame is that of inject/mailbox."""
    return "__breakranks__" in stack[-1].f_globals


def is_passed(frame: FrameType) -> bool:
    """Whether a thread that is to stop continues through this frame."""
    name = frame.f_globals.get("__name__")
    return not isinstance(name, str) or name in _PASSED or name.startswith(("breakranks.", "importlib."))


def blocked(native: int, seconds: float = 0.05) -> bool:
    """Whether a thread is blocked in a system call: it sleeps, and did not run between two readings."""
    first = _activity(native)
    if first is None or first[0] not in "SD":
        return False
    time.sleep(seconds)
    return _activity(native) == first


def _activity(native: int) -> tuple[str, str, str] | None:
    """Return the state of a thread, its CPU time, and its number of context switches."""
    try:
        with open(f"/proc/self/task/{native}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/self/task/{native}/status") as file:
            switches = [line for line in file if "ctxt_switches" in line]
    except OSError:
        return None
    return fields[0], f"{fields[11]} {fields[12]}", "".join(switches)


# ---- trace functions


class _Layout(NamedTuple):
    """Byte offsets of fields in a thread state, and the C function that calls a Python trace function."""

    ident: int
    function: int
    argument: int
    trampoline: int


class _Calls(NamedTuple):
    walk: Callable[[], Iterator[int]]
    number_of: Any
    set_trace: Any


@functools.cache
def _calls() -> _Calls:
    library = ctypes.PyDLL(None)  # a private object: the types set here do not affect other users of ctypes
    pointer = ctypes.c_void_p

    def function(name: str, result: Any, *arguments: Any) -> Any:
        found = getattr(library, name)
        found.restype, found.argtypes = result, arguments
        return found

    try:
        interpreter = function("PyInterpreterState_Get", pointer)()
        first = function("PyInterpreterState_ThreadHead", pointer, pointer)
        following = function("PyThreadState_Next", pointer, pointer)
        number_of = function("PyThreadState_GetID", ctypes.c_uint64, pointer)
        set_trace = None
        if sys.version_info < (3, 12):
            set_trace = function("_PyEval_SetTrace", ctypes.c_int, pointer, pointer, pointer)
    except AttributeError as error:
        raise ThreadUnreachable(f"this Python does not export a C function that is needed ({error})") from None

    def walk() -> Iterator[int]:
        # Runs in C from the first step to the last: no bytecode at which another thread could run, and end.
        return takewhile(bool, accumulate(chain(map(first, (interpreter,)), repeat(0)), following))

    return _Calls(walk, number_of, set_trace)


@functools.cache
def _layout() -> _Layout:
    """Measure which words of the state of this thread change when it sets and removes a trace function."""
    library = ctypes.PyDLL(None)
    library.PyThreadState_Get.restype = ctypes.c_void_p
    words = (ctypes.c_size_t * _MAX_WORDS).from_address(library.PyThreadState_Get())

    def nothing(frame: FrameType, event: str, argument: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(None)
    bare = list(words)
    sys.settrace(nothing)
    traced = list(words)
    sys.settrace(before)
    arguments = [at for at in range(2, _MAX_WORDS) if traced[at] == id(nothing) and not bare[at]]
    idents = [at for at in range(_MAX_WORDS) if bare[at] == threading.get_ident()]
    if len(arguments) != 1 or len(idents) != 1 or bare[arguments[0] - 2] or not traced[arguments[0] - 2]:
        raise ThreadUnreachable("the layout of this Python's thread states is not known")
    return _Layout(idents[0] * 8, (arguments[0] - 2) * 8, arguments[0] * 8, traced[arguments[0] - 2])


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


def tracers() -> dict[int, int]:
    """Return the id of the trace function of each thread that has one."""
    layout, walk = _layout(), _calls().walk
    found = {}
    for state in list(walk()):
        if _word(state + layout.function):
            found[_word(state + layout.ident)] = _word(state + layout.argument)
    return found


def set_trace(ident: int, tracer: Any) -> None:
    """Do what ``sys.settrace`` would do in that thread; None removes the function. Up to 3.11 only."""
    layout, calls = _layout(), _calls()
    for state in list(calls.walk()):
        if _word(state + layout.ident) == ident:
            number = calls.number_of(state)
            break
    else:
        return  # it has ended
    function, argument = (layout.trampoline, id(tracer)) if tracer is not None else (None, None)
    # Found again by its number and set at once, in C as above: for a thread that has ended it would crash.
    matching = compress(calls.walk(), map(number.__eq__, map(calls.number_of, calls.walk())))
    deque(map(calls.set_trace, matching, repeat(function), repeat(argument)), maxlen=0)


def untrace_all() -> None:
    """Remove every trace function of the process, also those of other tools. From 3.12 on only."""
    sys._settraceallthreads(None)  # type: ignore[attr-defined]
