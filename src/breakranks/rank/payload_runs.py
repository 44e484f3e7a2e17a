"""Payloads that a console sends to the agent: run as injected code runs them, in a thread of their own.

A thread that ``threading`` does not know, so that a payload sees the threads of the job as it does when it is injected,
and one that never returns costs the job nothing but that thread.
"""

from __future__ import annotations

import _thread
import json
import socket
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from breakranks.rank_messages import PayloadEvent, PayloadRequest

if TYPE_CHECKING:
    from breakranks.rank.unix_server import Client, UnixServer

_MAX_ANSWER_BYTES = 11 << 20  # in base64, within the limit of what a client may leave unread
_MAX_ERROR_CHARACTERS = 2000
_NAME = "breakranks"


def start(server: UnixServer, client: Client, request: PayloadRequest) -> None:
    """Run a payload; its answer is sent to the client when it is there."""
    arguments = json.loads(request.arguments)
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a payload are not an object")
    # In globals of its own, by whose names a payload recognises its own thread: rank/payloads/frame_values.
    scope = {"__breakranks__": 1, "__builtins__": __builtins__, "__name__": __name__}
    outermost = FunctionType(_outermost.__code__, scope, "_outermost")
    _thread.start_new_thread(outermost, (lambda: _run(server, client, request, arguments),))


def _outermost(run: Callable[[], None]) -> None:
    """The outermost function of the thread. Nothing is written into the output of the job."""
    try:
        run()
    except BaseException:
        pass


def _run(server: UnixServer, client: Client, request: PayloadRequest, arguments: dict[str, Any]) -> None:
    if not _has_left(client):
        server.tell(_event(request, arguments), client)


def _has_left(client: Client) -> bool:
    """Whether the client has closed its connection: that withdraws a request that has not begun."""
    try:
        return not client.connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _event(request: PayloadRequest, arguments: dict[str, Any]) -> PayloadEvent:
    _name_thread()
    try:
        answer = _answer(request.source, arguments)
    except BaseException as error:
        return PayloadEvent(id=request.id, error=_error_text(error))
    if len(answer) > _MAX_ANSWER_BYTES:
        return PayloadEvent(id=request.id, error=f"the answer is too large: {len(answer)} bytes")
    return PayloadEvent(id=request.id, answer=answer)


def _answer(source: str, arguments: dict[str, Any]) -> bytes:
    scope: dict[str, Any] = {"__name__": "breakranks_payload", "__builtins__": __builtins__}
    try:
        exec(compile(source, "<breakranks>", "exec"), scope)
        answer = scope["answer"](arguments)
        if callable(answer):  # a part that may take long
            answer = answer()
        return answer.encode() if isinstance(answer, str) else bytes(answer)
    finally:
        scope.clear()


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS]
    except BaseException:
        return type(error).__name__


def _name_thread() -> None:
    """Name the thread in the kernel as an injected one: it has inherited the name of the agent's."""
    try:
        with open("/proc/thread-self/comm", "w") as file:
            file.write(_NAME)
    except OSError:
        pass
