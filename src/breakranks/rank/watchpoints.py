"""What is armed besides breakpoints: expressions that are watched, exceptions that are caught, and probes."""

from __future__ import annotations

import reprlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

from breakranks.rank import collective_guard, thread_location, value_summary

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_MAX_SMALL_ITEMS = 100  # elements of a tuple that is compared by value
_MACHINERY = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
_MAX_TEXT_CHARACTERS = 2000

Mark = tuple[Any, ...]


@dataclass(slots=True, kw_only=True)
class Watchpoint:
    """An expression of one frame, evaluated at each line of the functions that called one another when it was set."""

    number: int
    source: str
    code: CodeType
    thread: int
    frame: FrameType
    codes: dict[int, CodeType]  # by id: two functions of the same text are two
    mark: Mark = ()
    text: str = ""

    def look(self) -> tuple[str, str] | None:
        """What it was and what it is now, if that is another."""
        mark, text = self._evaluate()
        if mark == self.mark:
            return None
        before, self.mark, self.text = self.text, mark, text
        return before, text

    def begin(self) -> None:
        self.mark, self.text = self._evaluate()

    def _evaluate(self) -> tuple[Mark, str]:
        try:
            with collective_guard.guarding(frozenset(), modules=False):
                value = eval(self.code, self.frame.f_globals, self.frame.f_locals)
            return mark_of(value), short(value)
        except Exception as error:
            return ("raised", type(error).__name__), f"{type(error).__name__}: {error}"[:200]


def mark_of(value: Any) -> Mark:
    """What tells a value from another, without keeping it: plain ones by what they are, tensors by their version."""
    if isinstance(value, float) and value != value:
        return ("plain", float, "nan")
    if type(value) in _PLAIN:
        return ("plain", type(value), value)
    if type(value) is tuple and len(value) <= _MAX_SMALL_ITEMS and all(type(one) in _PLAIN for one in value):
        return ("plain", tuple, repr(value))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return ("tensor", id(value), _place(value), value._version, tuple(value.shape))
    try:
        return ("other", id(value), type(value), len(value))
    except Exception:
        return ("other", id(value), type(value))


def _place(tensor: Any) -> int:
    try:
        return int(tensor.data_ptr())
    except Exception:  # a fake one, a DTensor, one without memory
        return 0


def short(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except BaseException as error:  # a repr may do anything
        return f"<{type(value).__name__}: {type(error).__name__} in its repr>"


# ---- exceptions


def is_caught(names: dict[str, Any], error: BaseException) -> bool:
    """Whether one of the names is that of the exception or of a class above it. What ends a loop must be named."""
    kinds = [kind for kind in type(error).__mro__ if kind not in (object, BaseException)] or [BaseException]
    if kinds[0].__name__ in _MACHINERY and not _named(names, kinds[0]):
        return False
    return any(_named(names, kind) for kind in (*kinds, BaseException))


def _named(names: dict[str, Any], kind: type) -> bool:
    return kind.__name__ in names or f"{kind.__module__}.{kind.__qualname__}" in names


def is_new(frame: FrameType, trace: TracebackType | None) -> bool:
    """Whether an exception has been raised in this very frame, and not in one that this frame called, or before."""
    return trace is not None and trace.tb_next is None and trace.tb_frame is frame


def said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__


# ---- probes


def _precheck(source: str, frame: FrameType) -> str:
    return collective_guard.precheck(source, frame.f_globals, frame.f_locals, frozenset()) or ""


@dataclass(slots=True, kw_only=True)
class LineProbe:
    """Tells what expressions are at a line, each time it is come to, and never stops there. ``limit`` 0: no end."""

    number: int
    file: str
    line: int
    when: CodeType | None
    prints: list[tuple[str, CodeType]]
    limit: int
    tell: Callable[[dict[str, Any]], None]
    hits: int = 0
    complained: bool = False
    refused: dict[str, str] | None = None  # of what is printed, what would start a collective, and how that is said
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def through(self) -> bool:
        return 0 < self.limit <= self.hits

    def hit(self, frame: FrameType) -> None:
        """A thread has come to the line."""
        with collective_guard.guarding(frozenset(), modules=False):
            if not self._holds(frame):
                return
            with self.lock:
                if self.through:
                    return
                self.hits += 1
                number = self.hits
            told = [self._value(frame, source, code) for source, code in self.prints]
        record = {"probe": self.number, "hit": number, "thread": threading.current_thread().name, "values": told}
        self._tell({**record, "where": thread_location.place(frame), "done": 0 < self.limit <= number})

    def _holds(self, frame: FrameType) -> bool:
        if self.when is None:
            return True
        try:
            return bool(eval(self.when, frame.f_globals, frame.f_locals))
        except Exception as error:
            if not self.complained:
                self.complained = True
                self._tell({"probe": self.number, "hit": 0, "error": f"its condition raised {said(error)}"})
            return False

    def _refused(self, frame: FrameType, source: str) -> str:
        """Read once, before anything of it runs: a module of FSDP's that is refused midway is left half gathered."""
        if self.refused is None:
            found = {one: _precheck(one, frame) for one, _ in self.prints}
            self.refused = {one: why for one, why in found.items() if why}
        return self.refused.get(source, "")

    def _value(self, frame: FrameType, source: str, code: CodeType) -> dict[str, Any]:
        refused = self._refused(frame, source)
        if refused:
            return {"source": source, "error": f"refused: {refused}"}
        try:
            value = eval(code, frame.f_globals, frame.f_locals)
            text, cut = value_summary.bounded(value)
            more = max(len(text) - _MAX_TEXT_CHARACTERS, 0)
            return {
                "source": source,
                "text": text[:_MAX_TEXT_CHARACTERS],
                "cut": cut + more,
                "value": value_summary.describe(value),
            }
        except Exception as error:
            return {"source": source, "error": said(error)}

    def _tell(self, record: dict[str, Any]) -> None:
        try:
            self.tell(record)
        except Exception:  # whoever wanted to know has gone
            pass
