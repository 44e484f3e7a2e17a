"""The messages between a console and the agent in a rank, one type each.

A message is one line of JSON. ``do`` names a request, ``event`` an event, and the other keys are the fields of its
type. A field that is None is left out, and unknown keys are ignored.

The agent imports this module in the job's process, so it needs the standard library only. Its types are no dataclasses:
to make them takes 7 ms, in which the main thread of a rank stands still at an attach.
``backend/rank_decoder`` checks the events that a console receives.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, TypeVar

from breakranks.rankset import RankSet

# Commands of pdb that set what ranks stop at. They are for ranks that run as well.
ARMING = frozenset("b break tbreak cl clear condition ignore enable disable watch unwatch catch".split())

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # only type checkers need it, and Python 3.10 does not have it

    def dataclass_transform(**_given):
        return lambda kind: kind


Message = TypeVar("Message", bound="RankMessage")

VERSION = 1
RunState = Literal["running", "stopped", "busy"]

# A sharded module within whose forward or backward a rank is stopped. Some of its keys are keywords of Python.
ShardedModule = TypedDict(
    "ShardedModule",
    {
        "module": str,
        "pass": str,
        "kind": str,
        "class": str,
        "gathered": list[str],
        "gathered_count": int,
        "safe": list[str],
    },
    total=False,
)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class RankMessage:
    """A message, or a value in one. Its fields are the annotations of its class, as in a dataclass."""

    KINDS: ClassVar[dict[str, str]] = {}  # by field: its type, as it is written
    DEFAULTS: ClassVar[dict[str, Any]] = {}  # of the fields that have one

    def __init_subclass__(cls) -> None:
        annotated = [(base, name, kind) for base in reversed(cls.__mro__[:-1])
                     for name, kind in base.__annotations__.items() if not kind.startswith("ClassVar")]  # fmt: skip
        cls.KINDS = {name: kind for _, name, kind in annotated}
        cls.DEFAULTS = {name: vars(base)[name] for base, name, _ in annotated if name in vars(base)}

    def __init__(self, **given: Any) -> None:
        values = {**self.DEFAULTS, **given}
        if values.keys() != self.KINDS.keys():
            raise TypeError(f"{type(self).__name__}: unknown or missing: {sorted(values.keys() ^ self.KINDS.keys())}")
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.KINDS)
        return f"{type(self).__name__}({given})"

    def plain(self) -> dict[str, Any]:
        """The fields that are not None, as JSON has them."""
        given = ((name, getattr(self, name)) for name in self.KINDS)
        return {name: _plain(value) for name, value in given if value is not None}


def changed(message: Message, **fields: Any) -> Message:
    """A copy of a message with other values in these fields."""
    return type(message)(**{**vars(message), **fields})


def _plain(value: object) -> object:
    if isinstance(value, RankMessage):
        return value.plain()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_line(message: RankMessage) -> bytes:
    """The message as it is sent."""
    return json.dumps(message.plain()).encode() + b"\n"


# ---- values


class CodePlace(RankMessage):
    """A line of code that a thread is at. ``source`` is its text."""

    file: str = "?"
    line: int | None = None
    function: str = "?"
    source: str | None = None

    @property
    def short_file(self) -> str:
        """``train.py:30``."""
        return f"{os.path.basename(self.file)}:{self.line}"


def read_place(plain: object) -> CodePlace | None:
    """The place that another process has written, as far as it is one."""
    if not isinstance(plain, dict) or not plain:
        return None
    kinds = {"file": str, "line": int, "function": str, "source": str}
    return CodePlace(**{name: plain[name] for name, kind in kinds.items() if isinstance(plain.get(name), kind)})


class CurrentCollective(CodePlace):
    """The collective that a rank is in, its members, and the line of the user's code that has called it."""

    op: str = "a collective"
    group: str = ""
    members: tuple[int, ...] = ()


class ProbedValue(RankMessage):
    """An expression at a logpoint: its text and described value, or the error."""

    source: str = ""
    text: str = ""
    cut: int = 0
    value: dict[str, Any] | None = None
    error: str | None = None


class FrameVariables(RankMessage):
    """Variables of one frame of a stack, by their place in it from the outside, each with its value as short text."""

    depth: int
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class ThreadStack(RankMessage):
    """A thread: its id in the kernel (0: not known), its name, and the number of its stack in the event."""

    tid: int
    name: str
    stack: int
    variables: tuple[FrameVariables, ...] = ()


class ThreadCall(RankMessage):
    """The line of ``/proc/self/task/TID/syscall`` of a thread, and what is in memory at some addresses in it."""

    tid: int
    text: str
    addresses: tuple[int, ...] = ()
    memory: tuple[bytes, ...] = ()


class RankState(RankMessage):
    """The state of a rank. The fields from ``role`` on are those of its stop; they are None while it runs.

    ``turn`` counts the changes: of two states, the one with the larger turn is newer. ``tracing``: the rank runs, and a
    breakpoint may stop it again. ``stoppers``: the ranks that a held rank waits for. ``until_go``: it waits for a `go`.
    """

    turn: int
    rank: int
    world: int
    pid: int
    host: str = ""
    helper: bool = False
    state: RunState = "running"
    tracing: bool = False
    off: bool = False
    consoles: int = 1
    role: str | None = None
    stoppers: str | None = None
    until_go: bool | None = None
    reason: str | None = None
    crashed: bool | None = None
    exception: str | None = None  # of a crash
    site: str | None = None
    thread: str | None = None
    since: float | None = None
    where: CodePlace | None = None
    inside: ShardedModule | None = None
    notes: tuple[str, ...] | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether the rank is in the debugger, at a prompt or held."""
        return self.state != "running"

    @property
    def is_held(self) -> bool:
        return self.role == "held"

    @property
    def awaited(self) -> RankSet:
        """The ranks that a held rank waits for."""
        return RankSet.parse(self.stoppers or "")


# ---- requests of a console


class RankRequest(RankMessage):
    """A request. Its reply has the same ``id``."""

    do: ClassVar[str] = ""
    id: int | None = None

    def plain(self) -> dict[str, Any]:
        return {"do": self.do, **super().plain()}


class HelloRequest(RankRequest):
    """The first request of a connection. ``console``: the rank resumes when the last console has left."""

    do = "hello"
    console: bool = False
    version: int = VERSION


class RunRequest(RankRequest):
    """Run a line in pdb. ``takers``: all ranks that get it. ``look``: also where the rank is not stopped.

    ``turn``: as in ``GoRequest``. A rank that has resumed from that stop answers ``went``.
    """

    do = "run"
    line: str
    takers: str = ""
    look: bool = False
    turn: int | None = None


class GoRequest(RankRequest):
    """Resume the rank. ``ranks``: also these, through the store of the job; ``only``: these alone.

    ``turn``: only from a stop of this turn or an earlier one. A rank that was held for another one may have resumed by
    itself and stopped again, before the request of the console arrives.
    """

    do = "go"
    ranks: str = ""
    only: bool = False
    turn: int | None = None


class InterruptRequest(RankRequest):
    """Stop the rank at its next line, or end what it evaluates."""

    do = "interrupt"
    hold: bool = False
    reason: str = ""


class WithdrawRequest(RankRequest):
    """Undo an interrupt that has not stopped the rank yet."""

    do = "withdraw"


class WhereRequest(RankRequest):
    """Report the stack of a rank that may run."""

    do = "where"


class ProbeRequest(RankRequest):
    """Set a logpoint at ``place``, FILE:LINE."""

    do = "probe"
    place: str
    times: int
    prints: tuple[str, ...] = ()
    when: str = ""


class CompleteRequest(RankRequest):
    """Report the words that complete ``text``."""

    do = "complete"
    text: str = ""


class PatienceRequest(RankRequest):
    """Extend the timeouts of process groups, while this console is connected and needs it."""

    do = "patience"
    needed: bool = False


class DapRequest(RankRequest):
    """Start debugpy and connect it to the socket at ``path``; without a path, report whether the rank has debugpy."""

    do = "dap"
    path: str = ""
    folder: str = ""


class StateRequest(RankRequest):
    """Report the state."""

    do = "state"


class StacksRequest(RankRequest):
    """Report the stacks of all threads.

    ``variables``: also short texts of local variables that are plain values: of frames whose file does not match the
    regular expression ``library``, all of them; of other frames those in ``kept``, each "FUNCTION|PART OF PATH|NAME".
    ``calls``: also the system calls that threads are in. ``pointers``: what is read with these, each
    "NUMBER:ARGUMENT:SIZE".
    """

    do = "stacks"
    variables: bool = False
    library: str = ""
    kept: tuple[str, ...] = ()
    calls: bool = False
    pointers: tuple[str, ...] = ()


class PayloadRequest(RankRequest):
    """Run the source of a payload (``rank/payloads``) in a thread of its own, as injected code runs it.

    ``arguments`` is a JSON object.
    """

    do = "payload"
    source: str
    arguments: str = "{}"


class ByeRequest(RankRequest):
    """The console leaves. ``armed``: breakpoints still stop."""

    do = "bye"
    armed: bool = False


_REQUESTS: dict[object, type[RankRequest]] = {
    kind.do: kind
    for kind in (
        HelloRequest,
        RunRequest,
        GoRequest,
        InterruptRequest,
        WithdrawRequest,
        WhereRequest,
        ProbeRequest,
        CompleteRequest,
        PatienceRequest,
        DapRequest,
        StateRequest,
        StacksRequest,
        PayloadRequest,
        ByeRequest,
    )
}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value)


_FROM_JSON: dict[object, Callable[[Any], object]] = {
    "bool": bool,
    "int": int,
    "int | None": int,
    "str": str,
    "tuple[str, ...]": _texts,
}


def read_request(plain: Mapping[str, Any]) -> RankRequest | None:
    """The request in a JSON object; None where ``do`` is unknown. Raises TypeError or ValueError for a bad field."""
    word = plain.get("do")
    kind = _REQUESTS.get(word) if isinstance(word, str) else None
    if kind is None:
        return None
    found: dict[str, Any] = {}
    for name, type_text in kind.KINDS.items():
        value = plain.get(name)
        if value is not None:
            found[name] = _FROM_JSON[type_text](value)
    return kind(**found)


# ---- events of an agent


class RankEvent(RankMessage):
    """An event. One with an ``id`` is the reply to the request with that id."""

    event: ClassVar[str] = ""
    id: int | None = None

    def plain(self) -> dict[str, Any]:
        return {"event": self.event, **super().plain()}


class HelloEvent(RankState, RankEvent):
    """The reply to a hello."""

    event = "hello"
    version: int = VERSION


class StateEvent(RankState, RankEvent):
    """The state has changed, or was requested. ``text``: what pdb has printed at the stop."""

    event = "state"
    text: str | None = None


class WhereEvent(RankState, RankEvent):
    """The stack of the inspected ``thread``, innermost first. ``blocked``: it is in a system call."""

    event = "where"
    frames: tuple[CodePlace, ...] = ()
    blocked: bool | None = None
    collective: CurrentCollective | None = None


class AnswerEvent(RankEvent):
    """What a line has printed. ``cut``: characters that were left out. ``went``: the rank has resumed.
    ``running``: it was not run, since the rank is not at a prompt."""

    event = "answer"
    state: RankState
    text: str = ""
    cut: int = 0
    value: dict[str, Any] | None = None
    error: bool = False
    went: bool = False
    running: bool | None = None


class SaidEvent(RankEvent):
    """Text that was not requested, such as that of a breakpoint's commands."""

    event = "said"
    text: str


class ProbeEvent(RankEvent):
    """A hit of the logpoint with the number ``probe``, or the error of its condition."""

    event = "probe"
    probe: int = 0
    hit: int = 0
    thread: str | None = None
    values: tuple[ProbedValue, ...] = ()
    where: CodePlace | None = None
    done: bool | None = None
    error: str | None = None


class CompletionsEvent(RankEvent):
    """The words that complete a text."""

    event = "completions"
    words: tuple[str, ...] = ()


class DoneEvent(RankEvent):
    """A request has been handled.

    Of an interrupt ``done`` is "evaluating", "stopped", "soon" or "refused", and ``why`` the reason for a refusal. Of a
    logpoint there is the ``error``; of an extension of timeouts ``notes`` on those that stay short; of ``dap`` whether
    debugpy was ``started``, the rank is ``busy`` with another client, or has debugpy of its ``own``.
    """

    event = "done"
    done: str | None = None
    why: str | None = None
    error: str | None = None
    notes: tuple[str, ...] | None = None
    started: bool | None = None
    busy: bool | None = None
    own: bool | None = None


class StacksEvent(RankEvent):
    """The stacks of all threads, each stack once. A stack is a row of numbers, outermost frame first: an index into
    ``functions`` and ``files``, and the line, for each frame. ``cut``: frames and threads that were left out."""

    event = "stacks"
    functions: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    threads: tuple[ThreadStack, ...] = ()
    calls: tuple[ThreadCall, ...] = ()
    cut: int = 0


class PayloadEvent(RankEvent):
    """The answer of a payload, or the ``error`` that it raised."""

    event = "payload"
    answer: bytes = b""
    error: str | None = None


class ErrorEvent(RankEvent):
    """A request was not understood."""

    event = "error"
    text: str = ""


EVENTS: dict[object, type[RankEvent]] = {
    kind.event: kind
    for kind in (
        HelloEvent,
        StateEvent,
        WhereEvent,
        AnswerEvent,
        SaidEvent,
        ProbeEvent,
        CompletionsEvent,
        DoneEvent,
        StacksEvent,
        PayloadEvent,
        ErrorEvent,
    )
}
