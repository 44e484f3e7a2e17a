"""The agents in the processes of this host, and connections to their sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from breakranks.errors import BreakranksError
from breakranks.log import Log
from breakranks.rank import run_dir

_log = Log("backend")
_CONNECT_SECONDS = 2.0
_MAX_PLACE_CHARACTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAgent:
    """An agent that runs: its rank, its job and its socket."""

    job: str
    rank: int
    pid: int
    helper: bool
    path: str
    debugging: bool
    program: str = ""
    place: str = ""
    attached: bool = False  # injected: it unloads itself after its last console
    host: str = ""  # "": this one


class AgentPlace(Protocol):
    """The hosts whose agents can be reached: this one, or those of a target."""

    rescan: float  # seconds between two searches for agents

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
    """Connect to a UNIX socket, through its open folder: its own path must be shorter than 108 characters."""
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
    """Return the agents in this user's processes on this host. Files that dead processes have left are removed."""
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


def agents_of(pids: Iterable[int]) -> dict[int, FoundAgent]:
    """Return the agents in these processes, of those that have one."""
    wanted = set(pids)
    try:
        return {agent.pid: agent for agent in find_agents() if agent.pid in wanted} if wanted else {}
    except BreakranksError as error:
        _log.info("agents not found", why=error.message)
        return {}


def _agents_of(base: str, job: str) -> list[FoundAgent]:
    from breakranks.rank_messages import read_place  # 8 ms, and most commands find no agent

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
        rank, pid, place = entry.get("rank"), entry["pid"], read_place(entry.get("where"))
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
                    place=f"{place.short_file} in {place.function}"[:_MAX_PLACE_CHARACTERS] if place else "",
                )
            )
    if not found:
        _clear(path)
    return found


def _clear(path: str) -> None:
    """Remove the files of a job without processes, unless a process is about to write its entry."""
    with run_dir.alone(path) as locked:
        if locked:
            run_dir.sweep(path, last=True)
