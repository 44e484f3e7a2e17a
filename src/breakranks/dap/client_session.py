"""One client of the Debug Adapter Protocol, from its first message to its last.

Until its `attach` was found good we answer by ourselves, and nothing reaches a rank. After it, messages pass between
the client and pydevd in the rank as they are, but for what would end the rank or say what it is not.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from breakranks.dap.dap_messages import (
    MAX_FIRST_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    MalformedMessage,
    Message,
    event,
    output,
    pack,
    read,
    refusal,
    response,
)

if TYPE_CHECKING:
    from breakranks.dap.bridge import DapUpstream

_PATIENCE_SECONDS = 60.0  # seconds that a client has for its attach
_PAUSE_SECONDS = 2.0  # seconds in which a rank that runs Python has stopped
_DRAIN_SECONDS = 5.0  # seconds that a client has to take the last messages
# What pydevd in debugpy 1.8 answers, less the ways to end the process. Its own answer follows when it is there.
CAPABILITIES: Message = dict.fromkeys(
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
_OURS = ("breakranksToken", "breakranksRank", "connect", "listen", "host", "port", "processId", "subProcessId")
_NO_END = "a rank is not ended from here: disconnect, and `kill-job` in `breakranks console` ends the job"


class ClientRefused(Exception):
    """The client may not come in; its text is told to it."""


class ClientSession:
    """``rank``: that of the socket it came by, None for a loopback connection, which has to show ``token``."""

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
        self._initialize: Message | None = None
        self._attach: Message | None = None
        self._pausing: asyncio.Task[None] | None = None
        self._name = "a client"
        self._entered = False

    async def run(self) -> None:
        """Until the client or the rank has gone. Never raises for what either of them does."""
        upstream: DapUpstream | None = None
        try:
            attach = await asyncio.wait_for(self._knock(), _PATIENCE_SECONDS)
            if attach is not None:
                upstream = await self._let_in(attach)
            if upstream is not None:
                await self._pass(upstream)
        except (MalformedMessage, asyncio.TimeoutError) as error:
            self._say(f"{self._whom()} was shown out: {str(error) or 'no attach came'}")
        except OSError:
            pass
        finally:
            if self._pausing is not None:
                self._pausing.cancel()
            if upstream is not None:
                upstream.close()
                self._say(f"rank {upstream.rank}: {self._name} has left, it runs on")
            await self._hang_up()

    def _whom(self) -> str:
        return f"{self._name} of rank {self._rank}" if self._rank is not None else self._name

    async def _send(self, message: Message) -> None:
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

    async def _knock(self) -> Message | None:
        """The `attach` of a client that may come in; None if it has left."""
        while True:
            message = await read(self._reader, MAX_FIRST_MESSAGE_BYTES)
            if message is None:
                return None
            command = message.get("command")
            if message["type"] != "request":
                raise MalformedMessage("no request came first")
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
                text = "only attach is possible: the job runs already" if command == "launch" else "not before attach"
                await self._send(refusal(message, text))
                return None

    async def _may(self, attach: Message) -> bool:
        """Whether the client has the token; it also says which rank it wants, if it came by the port."""
        arguments = _arguments(attach)
        if self._rank is not None:
            return True
        shown, wanted = arguments.get("breakranksToken"), arguments.get("breakranksRank")
        if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), self._token.encode()):
            self._say(f"{self._name} was shown out: {'a wrong token' if shown else 'it has no token'}")
            await self._send(refusal(attach, "breakranksToken is not the one of this `breakranks attach --dap`"))
            return False
        if not isinstance(wanted, int):
            await self._send(refusal(attach, "breakranksRank is missing: the number of the rank to attach to"))
            return False
        self._rank = wanted
        return True

    async def _let_in(self, attach: Message) -> DapUpstream | None:
        assert self._rank is not None and self._initialize is not None
        try:
            upstream = await self._enter(self._rank)
        except ClientRefused as error:
            await self._send(refusal(attach, f"rank {self._rank}: {error}"))
            self._say(f"rank {self._rank}: {self._name} could not come in: {error}")
            return None
        self._entered = True
        self._say(f"rank {self._rank}: {self._name} is there")
        self._attach = attach
        kept = {name: value for name, value in _arguments(attach).items() if name not in _OURS}
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
            for one in done:
                one.result()
        finally:
            for one in ways:
                one.cancel()
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
                if command in ("pause", "continue"):  # of all threads, as debugpy's own adapter has it
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
            if message["type"] == "request":  # nothing in a rank has anything to ask of an editor
                continue
            if message.get("event") == "breakranksFailed":
                await self._failed(str(_body(message).get("why")))
                return
            if message.get("event") == "initialized":  # ours comes with the attach, whatever version that is
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
                self._entered = False  # it knows
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
        """pydevd stops a thread at its next line of Python. If that does not come, say why."""
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


def _arguments(message: Message) -> dict[str, Any]:
    found = message.get("arguments")
    return found if isinstance(found, dict) else {}


def _body(message: Message) -> dict[str, Any]:
    found = message.get("body")
    return found if isinstance(found, dict) else {}


def _name(initialize: Message) -> str:
    """How a client calls itself; other people's text, so only what can be printed."""
    found = _arguments(initialize)
    text = str(found.get("clientName") or found.get("clientID") or "a client")[:40]
    return "".join(c if c.isprintable() else "?" for c in text)
