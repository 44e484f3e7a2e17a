"""Decoding what a rank sends: the events of its agent, and the answers of injected code.

A rank is not trusted. A message with a field of another type, or out of its range, is refused as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from breakranks.errors import UsageError
from breakranks.rank_messages import EVENTS, AnswerEvent, ProbeEvent, RankEvent, StacksEvent, ThreadCall, ThreadStack
from breakranks.rankset import MAX_RANK, RankSet
from breakranks.typed_json import from_plain

REMEDY = "Inspect it from outside: breakranks stacks"
_LAST_TIME_SECONDS = 1e11  # that a calendar has
_END_OF_INTEGERS = 1 << 63
_LAST_LINE = (1 << 31) - 1

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachAnswer:
    """The answer of a process to an attach: the socket of its agent, or why it has none."""

    path: str | None = None
    job: str = ""
    attached: bool = False
    leaving: bool = False
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFields:
    """The answer of a process to a question: a value, an error, or the effect for which it was not evaluated."""

    value: str = ""
    described: dict[str, Any] | None = None
    printed: str = ""
    cut: int = 0
    error: str | None = None
    effect: str | None = None
    collective: str = ""
    where: dict[str, str | int | None] = field(default_factory=dict)
    thread: str = ""
    thread_name: str = ""
    refused: str | None = None


def read_event(data: bytes | bytearray) -> RankEvent | None:
    """Return the event in a line, or None where it is malformed. One of an unknown kind is a plain RankEvent."""
    message = _object(data)
    if message is None:
        return None
    word = message.get("event")
    kind = EVENTS.get(word, RankEvent) if isinstance(word, str) else RankEvent
    if isinstance(message.get("state"), dict):
        message["state"] = _without_none(message["state"])
    try:
        event = from_plain(kind, message)
    except (ValueError, OverflowError, RecursionError):
        return None
    return event if _in_range(event) else None


def read_answer(data: bytes | bytearray, kind: type[Answer]) -> Answer | None:
    """Return the answer of injected code, or None where it is malformed."""
    message = _object(data)
    if message is None:
        return None
    try:
        answer = from_plain(kind, message)
    except (ValueError, OverflowError, RecursionError):
        return None
    return answer if _in_range(answer) else None


def _object(data: bytes | bytearray) -> dict[str, Any] | None:
    # Not msgspec's parser: json also reads the lone surrogates that Python has for odd bytes in a path.
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return _without_none(message) if isinstance(message, dict) else None


def _without_none(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


def _in_range(message: object) -> bool:
    for name, check in _RANGES.items():
        value = getattr(message, name, None)
        if value is not None and not check(value):
            return False
    if isinstance(message, AnswerEvent):
        return _in_range(message.state)
    if isinstance(message, StacksEvent):
        return _are_stacks(message)
    return not isinstance(message, ProbeEvent) or all(_in_range(value) for value in message.values)


def _are_stacks(event: StacksEvent) -> bool:
    """Whether each index of the event is in its table."""
    codes = len(event.functions)
    return (
        codes == len(event.files)
        and all(_is_stack(stack, codes) for stack in event.stacks)
        and all(_is_thread(thread, event.stacks) for thread in event.threads)
        and all(_is_call(call) for call in event.calls)
    )


def _is_stack(stack: tuple[int, ...], codes: int) -> bool:
    places = all(0 <= code < codes for code in stack[::2])
    return not len(stack) % 2 and places and all(0 <= line <= _LAST_LINE for line in stack[1::2])


def _is_thread(thread: ThreadStack, stacks: tuple[tuple[int, ...], ...]) -> bool:
    if not (0 <= thread.tid < _END_OF_INTEGERS and 0 <= thread.stack < len(stacks)):
        return False
    frames = len(stacks[thread.stack]) // 2
    return all(0 <= found.depth < frames and len(found.names) == len(found.texts) for found in thread.variables)


def _is_call(call: ThreadCall) -> bool:
    addresses = all(0 <= address < 1 << 64 for address in call.addresses)
    return 0 <= call.tid < _END_OF_INTEGERS and addresses and len(call.addresses) == len(call.memory)


def _is_number(value: int) -> bool:
    return abs(value) < _END_OF_INTEGERS


def _is_count(value: int) -> bool:
    return 0 <= value < _END_OF_INTEGERS


def _is_rank(value: int) -> bool:
    return 0 <= value <= MAX_RANK + 1


def _is_time(value: float) -> bool:
    return abs(value) < _LAST_TIME_SECONDS


def _is_rank_set(value: str) -> bool:
    try:
        RankSet.parse(value)
    except (UsageError, ValueError):
        return False
    return True


_RANGES: dict[str, Callable[[Any], bool]] = {
    "id": _is_number,
    "turn": _is_count,
    "rank": _is_rank,
    "world": _is_rank,
    "pid": _is_count,
    "consoles": _is_count,
    "cut": _is_count,
    "hit": _is_count,
    "since": _is_time,
    "stoppers": _is_rank_set,
}
