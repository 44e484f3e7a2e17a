"""The answer of the payload ``frame_values``: values of local variables, by thread and frame.

The answer is data from an untrusted process: the type of each value is checked.
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from breakranks.snapshot.model import Frame

_MAX_ANSWER_BYTES = 8 << 20
# By the first name in the class hierarchy of an object that is listed here.
_KINDS = {
    "_thread.lock": "Lock",
    "_thread.RLock": "RLock",
    "threading._RLock": "RLock",
    "threading._PyRLock": "RLock",
    "threading.Condition": "Condition",
    "threading.BoundedSemaphore": "Semaphore",
    "threading.Semaphore": "Semaphore",
    "threading.Event": "Event",
    "threading.Barrier": "Barrier",
    "threading.Thread": "Thread",
    "queue.Queue": "Queue",
    "concurrent.futures._base.Future": "Future",
    "logging.Handler": "logging handler",
}
Values = dict[str, Any]


class AnsweredFrame(NamedTuple):
    """One frame of the answer."""

    depth: int
    frame: Frame
    values: Values


class AnsweredThread(NamedTuple):
    """A thread of the answer, with the requested frames, outermost first.

    ``depth`` is the number of all its frames, and ``top`` the innermost one.
    """

    tid: int
    ident: int
    depth: int
    top: Frame
    frames: tuple[AnsweredFrame, ...]


class ProcessAnswer(NamedTuple):
    """``flight`` is the answer of the payload ``flight_recorder``. ``error`` is its error, if it failed."""

    threads: tuple[AnsweredThread, ...]
    flight: bytes
    error: str


def read(data: bytes) -> ProcessAnswer:
    """Parse the answer of the payload ``frame_values``; raise ValueError if it is invalid."""
    head, _, rest = data.partition(b"\n")
    if len(head) > _MAX_ANSWER_BYTES:
        raise ValueError("it is too long")
    try:
        answer = ast.literal_eval(head.decode("ascii"))
        threads = tuple(
            AnsweredThread(
                tid=int(tid), ident=int(ident), depth=int(depth), top=Frame(str(top[0]), str(top[1]), int(top[2] or 0)),
                frames=tuple(AnsweredFrame(int(at), Frame(str(name), str(file), int(line)), dict(values))
                      for at, file, name, line, values in frames),
            )
            for tid, ident, depth, top, frames in answer.get("threads", ())
        )  # fmt: skip
        size, error = int(answer["flight"]), str(answer["error"])
    except (SyntaxError, LookupError, TypeError, AttributeError, RecursionError, MemoryError, OverflowError) as wrong:
        raise ValueError(type(wrong).__name__) from None
    if size != len(rest):
        raise ValueError("it is truncated")
    return ProcessAnswer(threads, rest, error)


def kind_of(value: object) -> str:
    """The kind of a synchronization object, or an empty string for any other value."""
    kinds = value.get("kinds") if isinstance(value, dict) else None
    for name in kinds if isinstance(kinds, list) else ():
        if name in _KINDS:
            return _KINDS[name]
    return ""


def plain(value: object, kind: type) -> Any:
    """The plain value if it is of exactly this type, or None."""
    found = value.get("plain") if isinstance(value, dict) else None
    return found if type(found) is kind else None


def numbers(value: object) -> tuple[int, ...]:
    """The integers of a list of numbers, or none."""
    found = value.get("numbers") if isinstance(value, dict) else None
    return tuple(number for number in found if type(number) is int) if isinstance(found, list) else ()
