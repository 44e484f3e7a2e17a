"""A client of the Debug Adapter Protocol, as an editor is one, over a UNIX socket or a port."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from support.waiting import DEADLINE_SECONDS as DEADLINE

Message = dict[str, Any]


class Closed(Exception):
    """The other side has hung up."""


class Client:
    """``address`` is a path or a (host, port). Everything that came is kept in ``heard``, in its order."""

    def __init__(self, address: str | tuple[str, int]) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE)
        self._connect(address)
        self.heard: list[Message] = []
        self._seq = 0
        self._buffer = b""
        self._seen: dict[str, int] = {}  # of each kind of event, up to where they were waited for already

    def _connect(self, address: str | tuple[str, int]) -> None:
        if not isinstance(address, str):
            self.socket.connect(address)
            return
        folder, name = os.path.split(address)
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self.socket.connect(f"/proc/self/fd/{handle}/{name}")  # the path itself may be too long for a socket
        finally:
            os.close(handle)

    def send(self, command: str, arguments: Message | None = None) -> int:
        self._seq += 1
        body = json.dumps(
            {"seq": self._seq, "type": "request", "command": command, "arguments": arguments or {}}
        ).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self._seq

    def answer(self, seq: int, seconds: float = DEADLINE) -> Message:
        """The response to a request, whatever it says."""
        return self._find(lambda one: one["type"] == "response" and one["request_seq"] == seq, seconds, since=0)

    def ask(self, command: str, arguments: Message | None = None) -> Message:
        """The body of a response that must be a success."""
        found = self.answer(self.send(command, arguments))
        assert found["success"], found
        return dict(found.get("body") or {})

    def refused(self, command: str, arguments: Message | None = None) -> str:
        """What is said to a request that must fail."""
        found = self.answer(self.send(command, arguments))
        assert not found["success"], found
        return str(found["message"])

    def event(self, name: str, seconds: float = DEADLINE, **body: Any) -> Message:
        """The next event of this name whose body has these values."""

        def fits(one: Message) -> bool:
            return one.get("event") == name and all(one["body"].get(key) == value for key, value in body.items())

        found = self._find(fits, seconds, since=self._seen.get(name, 0))
        self._seen[name] = self.heard.index(found) + 1
        return dict(found.get("body") or {})

    def _find(self, fits: Callable[[Message], bool], seconds: float, since: int) -> Message:
        until = time.monotonic() + seconds
        at = since
        while True:
            while at < len(self.heard):
                if fits(self.heard[at]):
                    return self.heard[at]
                at += 1
            self.heard.append(self.read(until - time.monotonic()))

    def read(self, seconds: float) -> Message:
        while True:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if found:
                length = int(head.split(b":")[1])
                if len(rest) >= length:
                    self._buffer = rest[length:]
                    return dict(json.loads(rest[:length]))
            if seconds <= 0:
                raise TimeoutError(f"not in time; heard: {self.heard[-5:]}")
            self.socket.settimeout(seconds)
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise Closed
            self._buffer += chunk

    def closed(self) -> bool:
        """Whether the other side hangs up, after whatever it still says."""
        try:
            while True:
                self.heard.append(self.read(DEADLINE))
        except (Closed, ConnectionResetError):
            return True

    def close(self) -> None:
        self.socket.close()

    # ---- what an editor does

    def attach(self, **arguments: Any) -> None:
        """From the first message to where breakpoints can be set."""
        self.ask("initialize", {"clientID": "test", "adapterID": "debugpy", "pathFormat": "path"})
        seq = self.send("attach", {"justMyCode": False, **arguments})
        found = self.answer(seq)
        assert found["success"], found
        self.event("initialized")

    def run_to(self, file: str, line: int) -> int:
        """Set a breakpoint, let it run there, and give the thread that has stopped."""
        found = self.ask("setBreakpoints", {"source": {"path": file}, "breakpoints": [{"line": line}]})
        assert [one["verified"] for one in found["breakpoints"]] == [True], found
        self.ask("configurationDone")
        return int(self.event("stopped", reason="breakpoint")["threadId"])

    def locals_of(self, frame: int) -> dict[str, str]:
        scopes = self.ask("scopes", {"frameId": frame})["scopes"]
        reference = next(one["variablesReference"] for one in scopes if one["name"] == "Locals")
        variables = self.ask("variables", {"variablesReference": reference})["variables"]
        return {one["name"]: one["value"] for one in variables}
