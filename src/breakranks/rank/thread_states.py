"""The threads of this process: who they are, whether one stands in a system call, and the trace function of each.

Python lets a thread set only its own trace function. Up to 3.11 the call beneath it takes any thread; where its fields
are in the interpreter's own record of a thread is measured on the thread that asks, so that no version is assumed.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate, chain, compress, repeat, takewhile
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, NamedTuple

_WORDS = 32  # of such a record that are looked at; what we seek is in the first 25 since 3.10
_OURS = "breakranks"
# Lines of these are passed over: a thread that stops there may hold what all others need.
_PASSED = ("threading", "importlib", "_frozen_importlib", "_frozen_importlib_external")


class ThreadUnreachable(Exception):
    """The trace functions of other threads cannot be seen or set here; its text says why."""


# ---- who they are


def main() -> int:
    return threading.main_thread().ident or 0


def name_of(ident: int) -> str:
    """As the program calls it; no lock is taken."""
    found = threading._active.get(ident)  # type: ignore[attr-defined]
    return str(found.name) if found is not None else f"thread {ident}"


def native_of(ident: int) -> int:
    """The kernel's number of a thread, 0 where Python does not know it."""
    if ident == main():
        return os.getpid()
    found = threading._active.get(ident)  # type: ignore[attr-defined]
    return int(found.native_id or 0) if found is not None else 0


def is_ours(ident: int) -> bool:
    """Whether it is the agent's, or one that it has started."""
    return name_of(ident).startswith(_OURS)


def others() -> dict[int, FrameType]:
    """The threads of the job that have Python frames, with the innermost of each."""
    return {ident: frame for ident, frame in sys._current_frames().items() if not is_ours(ident)}


def stack_of(ident: int) -> list[FrameType]:
    """The frames of a thread, innermost first. It runs on meanwhile."""
    return list(stack(sys._current_frames().get(ident)))


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def resting() -> list[FrameType]:
    """The frames of generators and coroutines that are in no stack just now. Looks at every object there is."""
    import gc

    found = []
    for one in gc.get_objects():
        kind = type(one)
        if kind is GeneratorType:
            found.append(one.gi_frame)
        elif kind is CoroutineType:
            found.append(one.cr_frame)
        elif kind is AsyncGeneratorType:
            found.append(one.ag_frame)
    return [frame for frame in found if frame is not None]


def of_ours(frame: FrameType) -> bool:
    """Whether a frame is code of ours."""
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.startswith("breakranks.")


def is_passed(frame: FrameType) -> bool:
    """Whether a thread that is to stop goes on through this frame."""
    name = frame.f_globals.get("__name__")
    return not isinstance(name, str) or name in _PASSED or name.startswith(("breakranks.", "importlib."))


def blocked(native: int, seconds: float = 0.05) -> bool:
    """Whether a thread stands in a system call: it sleeps, and has had no processor between two looks."""
    first = _standing(native)
    if first is None or first[0] not in "SD":
        return False
    time.sleep(seconds)
    return _standing(native) == first


def _standing(native: int) -> tuple[str, str, str] | None:
    """Its state, its processor time, and how often it gave the processor up."""
    try:
        with open(f"/proc/self/task/{native}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/self/task/{native}/status") as file:
            switches = [line for line in file if "ctxt_switches" in line]
    except OSError:
        return None
    return fields[0], f"{fields[11]} {fields[12]}", "".join(switches)


# ---- their trace functions


class _Record(NamedTuple):
    """Where in the interpreter's record of a thread its fields are, and what calls a trace function of Python's."""

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
    import ctypes

    library = ctypes.PyDLL(None)  # one of our own: what is said here of its functions is nobody else's
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
        raise ThreadUnreachable(f"this Python does not export what is needed ({error})") from None

    def walk() -> Iterator[int]:
        # Runs in C from its first step to its last, without a bytecode at which another thread could end in between.
        return takewhile(bool, accumulate(chain(map(first, (interpreter,)), repeat(0)), following))

    return _Calls(walk, number_of, set_trace)


@functools.cache
def _record() -> _Record:
    """Measured: what changes in the record of this thread when it sets a trace function and takes it off."""
    import ctypes

    library = ctypes.PyDLL(None)
    library.PyThreadState_Get.restype = ctypes.c_void_p
    words = (ctypes.c_size_t * _WORDS).from_address(library.PyThreadState_Get())

    def nothing(frame: FrameType, event: str, argument: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(None)
    bare = list(words)
    sys.settrace(nothing)
    traced = list(words)
    sys.settrace(before)
    arguments = [at for at in range(2, _WORDS) if traced[at] == id(nothing) and not bare[at]]
    idents = [at for at in range(_WORDS) if bare[at] == threading.get_ident()]
    if len(arguments) != 1 or len(idents) != 1 or bare[arguments[0] - 2] or not traced[arguments[0] - 2]:
        raise ThreadUnreachable("this Python keeps its threads in a way that is not known")
    return _Record(idents[0] * 8, (arguments[0] - 2) * 8, arguments[0] * 8, traced[arguments[0] - 2])


def _word(address: int) -> int:
    import ctypes

    return ctypes.c_size_t.from_address(address).value


def tracers() -> dict[int, int]:
    """Of each thread that is traced, the id of its trace function."""
    record, walk = _record(), _calls().walk
    found = {}
    for state in list(walk()):
        if _word(state + record.function):
            found[_word(state + record.ident)] = _word(state + record.argument)
    return found


def set_trace(ident: int, tracer: Any) -> None:
    """What ``sys.settrace`` would do in that thread; None takes it off. Up to 3.11 only."""
    record, calls = _record(), _calls()
    for state in list(calls.walk()):
        if _word(state + record.ident) == ident:
            number = calls.number_of(state)
            break
    else:
        return  # it has ended
    function, argument = (record.trampoline, id(tracer)) if tracer is not None else (None, None)
    # Found again by its number and set at once, in C as above: in a thread that has ended it would be fatal.
    meant = compress(calls.walk(), map(number.__eq__, map(calls.number_of, calls.walk())))
    deque(map(calls.set_trace, meant, repeat(function), repeat(argument)), maxlen=0)


def untrace_all() -> None:
    """Takes every trace function of the process off, whosever it is. From 3.12 on only."""
    sys._settraceallthreads(None)  # type: ignore[attr-defined]
