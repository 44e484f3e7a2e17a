"""Watchpoints, caught exceptions and logpoints."""

from __future__ import annotations

import reprlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

from breakranks.rank import collective_guard, thread_location, value_summary
from breakranks.rank_messages import CodePlace, ProbedValue, ProbeEvent

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_MAX_COMPARED_ITEMS = 100  # a longer tuple is compared by identity
_CONTROL_FLOW = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
_MAX_TEXT_CHARACTERS = 2000

Mark = tuple[Any, ...]


@dataclass(slots=True, kw_only=True)
class Watchpoint:
    """An expression of one frame, evaluated at each line of the functions that were on the stack when it was set."""

    number: int
    source: str
    code: CodeType
    thread: int
    frame: FrameType
    codes: dict[int, CodeType]  # by id: code objects of equal text compare equal
    mark: Mark = ()
    text: str = ""

    def look(self) -> tuple[str, str] | None:
        """Return the old and the new value as text, if the value has changed."""
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
    """Return what tells a value from another, without a reference to it. Tensors are compared by their version."""
    if isinstance(value, float) and value != value:
        return ("plain", float, "nan")
    if type(value) in _PLAIN:
        return ("plain", type(value), value)
    if type(value) is tuple and len(value) <= _MAX_COMPARED_ITEMS and all(type(item) in _PLAIN for item in value):
        return ("plain", tuple, repr(value))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return ("tensor", id(value), _address(value), value._version, tuple(value.shape))
    try:
        return ("other", id(value), type(value), len(value))
    except Exception:
        return ("other", id(value), type(value))


def _address(tensor: Any) -> int:
    try:
        return int(tensor.data_ptr())
    except Exception:  # a fake tensor, a DTensor, a tensor without memory
        return 0


def short(value: Any) -> str:
    """Return the shortened repr of a value."""
    try:
        return reprlib.repr(value)
    except BaseException as error:  # a repr may raise anything
        return f"<{type(value).__name__}: repr() raised {type(error).__name__}>"


# ---- exceptions


def is_caught(names: dict[str, Any], error: BaseException) -> bool:
    """Whether one of the names is that of the exception's class or of a base class.

    StopIteration and its like are caught by their own name only.
    """
    kinds = [kind for kind in type(error).__mro__ if kind not in (object, BaseException)] or [BaseException]
    if kinds[0].__name__ in _CONTROL_FLOW and not _named(names, kinds[0]):
        return False
    return any(_named(names, kind) for kind in (*kinds, BaseException))


def _named(names: dict[str, Any], kind: type) -> bool:
    return kind.__name__ in names or f"{kind.__module__}.{kind.__qualname__}" in names


def is_new(frame: FrameType, trace: TracebackType | None) -> bool:
    """Whether an exception was raised in this frame now, and not earlier or in a frame that this one called."""
    return trace is not None and trace.tb_next is None and trace.tb_frame is frame


def error_text(error: BaseException) -> str:
    """Return the class and the message of an exception."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__


# ---- logpoints


def _precheck(source: str, frame: FrameType) -> str:
    refused = collective_guard.precheck(source, frame.f_globals, frame.f_locals, frozenset())
    return str(refused) if refused is not None else ""


@dataclass(slots=True, kw_only=True)
class LineLogpoint:
    """A logpoint: reports the values of expressions each time a thread reaches a line, without stopping it.

    ``limit``: the number of reports after which it is deleted; 0 for no limit.
    """

    number: int
    file: str
    line: int
    when: CodeType | None
    prints: list[tuple[str, CodeType]]
    limit: int
    tell: Callable[[ProbeEvent], None]
    hits: int = 0
    complained: bool = False
    refused: dict[str, str] | None = None  # by expression that would start a collective, the message
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def through(self) -> bool:
        return 0 < self.limit <= self.hits

    def hit(self, frame: FrameType) -> None:
        """A thread has reached the line."""
        with collective_guard.guarding(frozenset(), modules=False):
            if not self._holds(frame):
                return
            with self.lock:
                if self.through:
                    return
                self.hits += 1
                number = self.hits
            values = tuple(self._value(frame, source, code) for source, code in self.prints)
        self._tell(
            ProbeEvent(
                probe=self.number,
                hit=number,
                thread=threading.current_thread().name,
                values=values,
                where=CodePlace(**thread_location.place(frame)),
                done=0 < self.limit <= number,
            )
        )

    def _holds(self, frame: FrameType) -> bool:
        if self.when is None:
            return True
        try:
            return bool(eval(self.when, frame.f_globals, frame.f_locals))
        except Exception as error:
            if not self.complained:
                self.complained = True
                self._tell(ProbeEvent(probe=self.number, error=f"its condition raised {error_text(error)}"))
            return False

    def _refused(self, frame: FrameType, source: str) -> str:
        """Check the expressions once, before any runs: a refusal midway leaves a module of FSDP half gathered."""
        if self.refused is None:
            reasons = {source: _precheck(source, frame) for source, _ in self.prints}
            self.refused = {source: why for source, why in reasons.items() if why}
        return self.refused.get(source, "")

    def _value(self, frame: FrameType, source: str, code: CodeType) -> ProbedValue:
        refused = self._refused(frame, source)
        if refused:
            return ProbedValue(source=source, error=f"refused: {refused}")
        try:
            value = eval(code, frame.f_globals, frame.f_locals)
            text, cut = value_summary.bounded(value)
            more = max(len(text) - _MAX_TEXT_CHARACTERS, 0)
            return ProbedValue(
                source=source,
                text=text[:_MAX_TEXT_CHARACTERS],
                cut=cut + more,
                value=value_summary.describe(value),
            )
        except Exception as error:
            return ProbedValue(source=source, error=error_text(error))

    def _tell(self, event: ProbeEvent) -> None:
        try:
            self.tell(event)
        except Exception:  # the client has disconnected
            pass
