"""A connection to the agent of one rank, and finding the agents that are here."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Protocol

from msgspec import Struct

from breakranks.backend import agent_messages
from breakranks.errors import BreakranksError
from breakranks.rank import run_dir

_CONNECT_SECONDS = 2.0
_MAX_MESSAGE_BYTES = 1 << 26
Message = dict[str, Any]


class FoundAgent(Struct, frozen=True, kw_only=True):
    """An agent that is here: whose it is, and where its socket is."""

    job: str
    rank: int
    pid: int
    helper: bool
    path: str
    debugging: bool
    program: str = ""
    place: str = ""
    attached: bool = False  # brought there by somebody, and gone with them
    host: str = ""  # "": this one


class AgentPlace(Protocol):
    """Where agents are: on this host, or on those of a target."""

    rescan: float  # seconds after which it is worth to look again for agents

    def find(self) -> list[FoundAgent]: ...

    def connect(self, found: FoundAgent) -> socket.socket: ...


class LocalAgents:
    """This host."""

    rescan = 0.5

    def find(self) -> list[FoundAgent]:
        return find_agents()

    def connect(self, found: FoundAgent) -> socket.socket:
        return connected(found.path)


def connected(path: str) -> socket.socket:
    """A connection to a UNIX socket, by way of its open folder: its own path must be shorter than 108 characters."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    handle = -1
    try:
        handle = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        connection.connect(f"/proc/self/fd/{handle}/{os.path.basename(path)}")
    except OSError:
        connection.close()
        raise
    finally:
        if handle >= 0:
            os.close(handle)
    return connection


def find_agents() -> list[FoundAgent]:
    """The agents of this user's processes on this host. What dead ones have left is taken away."""
    base = run_dir.base()
    if not os.path.lexists(base):
        return []
    try:
        run_dir.private(base, make=False)
        jobs = sorted(name for name in os.listdir(base) if os.path.isdir(f"{base}/{name}"))
    except run_dir.NotPrivateFolder as error:
        raise BreakranksError("the folder of the agents cannot be trusted", str(error)) from None
    found = []
    for job in jobs:
        found += _agents_of(base, job)
    return found


def _agents_of(base: str, job: str) -> list[FoundAgent]:
    path = f"{base}/{job}"
    found = []
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return []
    for name in names:
        if not name.endswith(".json"):
            continue
        entry = run_dir.read(f"{path}/{name}")
        if not isinstance(entry, dict) or not run_dir.alive(entry):
            continue
        rank, pid = entry.get("rank"), entry["pid"]
        if isinstance(rank, int) and rank >= 0:
            found.append(
                FoundAgent(
                    job=job,
                    rank=rank,
                    pid=pid,
                    helper=bool(entry.get("helper")),
                    path=f"{path}/{pid}.sock",
                    debugging=bool(entry.get("debugging")),
                    program=str(entry.get("program", ""))[:80],
                    place=_place(entry.get("where")),
                )
            )
    if not found:
        _clear(path)
    return found


def _place(where: object) -> str:
    if not isinstance(where, dict) or not where:
        return ""
    return f"{os.path.basename(str(where.get('file')))}:{where.get('line')} in {where.get('function')}"[:120]


def _clear(path: str) -> None:
    """A job of which nobody is left: its files go, unless somebody is about to put up an entry."""
    with run_dir.alone(path) as sure:
        if sure:
            run_dir.sweep(path, last=True)


class RankConnection:
    """Lines of JSON to and from one agent. ``state`` is what it last said of itself."""

    def __init__(self, found: FoundAgent, place: AgentPlace) -> None:
        self.found = found
        self.rank = found.rank
        self.state: Message = {"state": "running"}
        self.closed = False
        self._heard = bytearray()
        self._connection = place.connect(found)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send; a rank that is gone is noticed when it is read from."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.close()

    def receive(self) -> list[Message]:
        """What has come; called when there is something. Closed at its end, or when it is not our agent's language."""
        try:
            chunk = self._connection.recv(1 << 18)
        except TimeoutError:
            return []
        except OSError:
            chunk = b""
        self._heard += chunk
        if not chunk or len(self._heard) > _MAX_MESSAGE_BYTES:
            self.close()
            return []
        *lines, rest = self._heard.split(b"\n")
        self._heard = bytearray(rest)
        found = []
        for line in lines:
            message = agent_messages.read(line)
            if message is None:
                self.close()
                break
            found.append(message)
        return found

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._connection.close()
