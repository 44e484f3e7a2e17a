"""One client of the Debug Adapter Protocol, from its first message to its last.

Until its `attach` is accepted, the bridge answers, and nothing reaches a rank. After that, messages pass between the
client and pydevd in the rank as they are, except those that would end the rank or promise what it cannot do.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from breakranks.dap.dap_messages import (
    MAX_FIRST_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    DapMessage,
    MalformedMessage,
    event,
    output,
    pack,
    read,
    refusal,
    response,
)

if TYPE_CHECKING:
    from breakranks.dap.bridge import DapUpstream

_PATIENCE_SECONDS = 60.0  # for the attach of a client
_PAUSE_SECONDS = 2.0  # within which a rank that runs Python stops
_DRAIN_SECONDS = 5.0  # for a client to read the last messages
# The capabilities of pydevd in debugpy 1.8, without those that end the process. Its own answer follows later.
CAPABILITIES: DapMessage = dict.fromkeys(
    (
        "supportsConfigurationDoneRequest supportsConditionalBreakpoints supportsHitConditionalBreakpoints "
        "supportsEvaluateForHovers supportsSetVariable supportsGotoTargetsRequest supportsCompletionsRequest "
        "supportsModulesRequest supportsExceptionOptions supportsValueFormattingOptions supportsExceptionInfoRequest "
        "supportsDelayedStackTraceLoading supportsLogPoints supportsSetExpression supportsClipboardContext "
        "supportsFunctionBreakpoints supportsStepInTargetsRequest"
    ).split(),
    True,
) | {
    "exceptionBreakpointFilters": [
        {"filter": "raised", "label": "Raised Exceptions", "default": False},
        {"filter": "uncaught", "label": "Uncaught Exceptions", "default": True},
        {"filter": "userUnhandled", "label": "User Uncaught Exceptions", "default": False},
    ]
}
_NEVER = {"supportsTerminateRequest": False, "supportTerminateDebuggee": False, "supportsRestartRequest": False}
_OWN_ARGUMENTS = ("breakranksToken", "breakranksRank", "connect", "listen", "host", "port", "processId", "subProcessId")
_NO_END = "a client does not end a rank: disconnect, and use `kill-job` in `breakranks console`"


class ClientRefused(Exception):
    """The client is refused. Its text is the reason for the client."""


class ClientSession:
    """``rank``: that of the client's socket; None for a loopback connection, which has to send ``token``."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        rank: int | None,
        token: str,
        enter: Callable[[int], Awaitable[DapUpstream]],
        where: Callable[[int], Awaitable[str]],
        say: Callable[[str], None],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._rank, self._token = rank, token
        self._enter, self._where, self._say = enter, where, say
        self._sent = 0
        self._initialize: DapMessage | None = None
        self._attach: DapMessage | None = None
        self._pausing: asyncio.Task[None] | None = None
        self._name = "a client"
        self._entered = False

    async def run(self) -> None:
        """Serve until the client or the rank has gone. Nothing that either does raises an exception."""
        upstream: DapUpstream | None = None
        try:
            attach = await asyncio.wait_for(self._knock(), _PATIENCE_SECONDS)
            if attach is not None:
                upstream = await self._let_in(attach)
            if upstream is not None:
                await self._pass(upstream)
        except (MalformedMessage, asyncio.TimeoutError) as error:
            self._say(f"{self._whom()} was disconnected: {str(error) or 'it did not attach'}")
        except OSError:
            pass
        finally:
            if self._pausing is not None:
                self._pausing.cancel()
            if upstream is not None:
                upstream.close()
                self._say(f"rank {upstream.rank}: {self._name} has left, the rank keeps running")
            await self._hang_up()

    def _whom(self) -> str:
        return f"{self._name} of rank {self._rank}" if self._rank is not None else self._name

    async def _send(self, message: DapMessage) -> None:
        self._sent += 1
        self._writer.write(pack({**message, "seq": self._sent}))
        await self._writer.drain()

    async def _hang_up(self) -> None:
        try:
            if self._entered:
                await asyncio.wait_for(self._send(event("terminated")), _DRAIN_SECONDS)
            self._writer.close()
            await asyncio.wait_for(self._writer.wait_closed(), _DRAIN_SECONDS)
        except (OSError, asyncio.TimeoutError):
            self._writer.transport.abort()

    # ---- before it is let in

    async def _knock(self) -> DapMessage | None:
        """The `attach` of a client that may come in; None if it has left."""
        while True:
            message = await read(self._reader, MAX_FIRST_MESSAGE_BYTES)
            if message is None:
                return None
            command = message.get("command")
            if message["type"] != "request":
                raise MalformedMessage("the first message is not a request")
            if command == "initialize" and self._initialize is None:
                self._initialize = message
                self._name = _name(message)
                await self._send(response(message, CAPABILITIES | _NEVER))
            elif command == "attach" and self._initialize is not None:
                return message if await self._may(message) else None
            elif command == "disconnect":
                await self._send(response(message))
                return None
            else:
                text = (
                    "only attach is possible: the job runs already" if command == "launch" else "attach must come first"
                )
                await self._send(refusal(message, text))
                return None

    async def _may(self, attach: DapMessage) -> bool:
        """Whether the client has the token. A client of the port also names its rank."""
        arguments = _arguments(attach)
        if self._rank is not None:
            return True
        shown, wanted = arguments.get("breakranksToken"), arguments.get("breakranksRank")
        if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), self._token.encode()):
            self._say(f"{self._name} was disconnected: {'a wrong token' if shown else 'it has no token'}")
            await self._send(refusal(attach, "breakranksToken is not the one of this `breakranks attach --dap`"))
            return False
        if not isinstance(wanted, int):
            await self._send(refusal(attach, "breakranksRank is missing: the number of the rank to attach to"))
            return False
        self._rank = wanted
        return True

    async def _let_in(self, attach: DapMessage) -> DapUpstream | None:
        assert self._rank is not None and self._initialize is not None
        try:
            upstream = await self._enter(self._rank)
        except ClientRefused as error:
            await self._send(refusal(attach, f"rank {self._rank}: {error}"))
            self._say(f"rank {self._rank}: {self._name} cannot attach: {error}")
            return None
        self._entered = True
        self._say(f"rank {self._rank}: {self._name} has attached")
        self._attach = attach
        kept = {name: value for name, value in _arguments(attach).items() if name not in _OWN_ARGUMENTS}
        upstream.send(self._initialize)
        upstream.send({**attach, "arguments": kept})
        for note in upstream.notes:
            await self._send(output(note))
        return upstream

    # ---- once it is in

    async def _pass(self, upstream: DapUpstream) -> None:
        ways = [asyncio.ensure_future(self._to_rank(upstream)), asyncio.ensure_future(self._to_client(upstream))]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in ways:
                task.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _to_rank(self, upstream: DapUpstream) -> None:
        while True:
            message = await read(self._reader, MAX_MESSAGE_BYTES)
            if message is None:
                return
            command = message.get("command") if message["type"] == "request" else None
            if command in ("initialize", "attach", "launch", "restart"):
                await self._send(refusal(message, "this client is attached already"))
            elif command in ("terminate", "terminateThreads"):
                await self._send(refusal(message, _NO_END))
            elif command is not None:
                if command == "disconnect":
                    message = {**message, "arguments": {"terminateDebuggee": False}}
                if command in ("pause", "continue"):  # for all threads, as debugpy's own adapter does
                    message = {**message, "arguments": {**_arguments(message), "threadId": "*"}}
                if command == "pause":
                    self._expect_stop()
                upstream.send(message)
                await upstream.drain()

    async def _to_client(self, upstream: DapUpstream) -> None:
        assert self._initialize is not None and self._attach is not None
        while True:
            message = await read(upstream.reader, MAX_MESSAGE_BYTES)
            if message is None:
                await self._failed("it has ended")
                return
            command = message.get("command") if message["type"] == "response" else None
            answers = message.get("request_seq") if command is not None else None
            if message["type"] == "request":  # a rank requests nothing of an editor
                continue
            if message.get("event") == "breakranksFailed":
                await self._failed(str(_body(message).get("why")))
                return
            if message.get("event") == "initialized":  # the bridge sends it after the attach, for any version of pydevd
                continue
            if command == "initialize" and answers == self._initialize["seq"]:
                await self._send(event("capabilities", {"capabilities": _body(message) | _NEVER}))
                continue
            if message.get("event") == "stopped" and self._pausing is not None:
                self._pausing.cancel()
            await self._send(message)
            if command == "attach" and answers == self._attach["seq"]:
                if not message.get("success"):
                    return
                self._attach = {"seq": None}
                await self._send(event("initialized"))
            if command == "disconnect":
                self._entered = False  # the client expects the end
                return

    async def _failed(self, why: str) -> None:
        assert self._attach is not None
        self._say(f"rank {self._rank}: {why}")
        if not self._entered:
            return
        if self._attach["seq"] is not None:
            await self._send(refusal(self._attach, f"rank {self._rank}: {why}"))
        else:
            await self._send(output(f"rank {self._rank}: {why}"))

    def _expect_stop(self) -> None:
        """pydevd stops a thread at its next line of Python. If none comes, tell the client why."""
        if self._pausing is not None:
            self._pausing.cancel()
        self._pausing = asyncio.ensure_future(self._explain())

    async def _explain(self) -> None:
        assert self._rank is not None
        await asyncio.sleep(_PAUSE_SECONDS)
        try:
            await self._send(output(await self._where(self._rank)))
        except OSError:
            pass


def _arguments(message: DapMessage) -> dict[str, Any]:
    found = message.get("arguments")
    return found if isinstance(found, dict) else {}


def _body(message: DapMessage) -> dict[str, Any]:
    found = message.get("body")
    return found if isinstance(found, dict) else {}


def _name(initialize: DapMessage) -> str:
    """The name that a client gives itself, without characters that cannot be printed."""
    found = _arguments(initialize)
    text = str(found.get("clientName") or found.get("clientID") or "a client")[:40]
    return "".join(c if c.isprintable() else "?" for c in text)
