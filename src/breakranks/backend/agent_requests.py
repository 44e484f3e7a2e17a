"""One request to the agents of many processes, all within one deadline. No process is traced."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from breakranks.backend.found_agents import FoundAgent, LocalAgents
from breakranks.backend.rank_connection import RankConnection
from breakranks.log import Log, milliseconds
from breakranks.machine_suspension import stalled
from breakranks.rank_messages import RankEvent, RankRequest

_log = Log("backend")
_POLL_SECONDS = 0.1
_CREDENTIALS = struct.Struct("3i")  # pid, user, group


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """The reply of one agent. ``event`` None: it did not answer in time (``late``), or has hung up."""

    event: RankEvent | None = None
    late: bool = False


class _CheckedAgents(LocalAgents):
    """The agents of this host; a socket that another process than the one in the entry serves is refused."""

    def connect(self, found: FoundAgent) -> socket.socket:
        connection = super().connect(found)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(peer)
        if pid != found.pid or user not in (os.geteuid(), 0):
            connection.close()
            raise OSError(f"{found.path} is served by process {pid} of user {user}")
        return connection


def ask_agents(
    agents: Mapping[int, FoundAgent],
    requests: Mapping[int, RankRequest],
    deadline: float,
    *,
    hopeless: Callable[[int, float], bool] = lambda pid, waited: False,
) -> dict[int, AgentReply]:
    """Return the reply of the agent of each process. ``hopeless``: whether a process that has not answered for some
    seconds never will."""
    began = time.monotonic()
    replies: dict[int, AgentReply] = {}
    waiting: dict[int, RankConnection] = {}
    try:
        for pid, request in requests.items():
            try:
                waiting[pid] = RankConnection(agents[pid], _CheckedAgents())
            except OSError as error:
                _log.info("agent not reached", pid=pid, why=error)
                replies[pid] = AgentReply(late=isinstance(error, TimeoutError))
            else:
                waiting[pid].send(request)
        _receive(waiting, replies, requests, deadline, hopeless)
    finally:
        for connection in waiting.values():
            connection.close()
    late = sorted(pid for pid, reply in replies.items() if reply.late)
    _log.info("agents asked", pids=",".join(map(str, requests)), late=late, ms=milliseconds(began))
    return replies


def _receive(
    waiting: dict[int, RankConnection],
    replies: dict[int, AgentReply],
    requests: Mapping[int, RankRequest],
    deadline: float,
    hopeless: Callable[[int, float], bool],
) -> None:
    began = last = time.monotonic()
    end = began + deadline
    while waiting:
        ready = _ready(waiting)
        for pid in ready:
            event = next((found for found in waiting[pid].receive() if _answers(found, requests[pid])), None)
            if event is not None or waiting[pid].closed:
                replies[pid] = AgentReply(event=event)
                waiting.pop(pid).close()
        now = time.monotonic()
        end += stalled(now - last, _POLL_SECONDS)
        last = now
        given_up = [pid for pid in waiting if now > end or (pid not in ready and hopeless(pid, now - began))]
        for pid in given_up:
            replies[pid] = AgentReply(late=True)
            waiting.pop(pid).close()


def _ready(waiting: Mapping[int, RankConnection]) -> set[int]:
    poll = select.poll()
    by_handle = {connection.fileno(): pid for pid, connection in waiting.items()}
    for handle in by_handle:
        poll.register(handle, select.POLLIN)
    with suppress(InterruptedError):
        return {by_handle[handle] for handle, _ in poll.poll(_POLL_SECONDS * 1000)}
    return set()


def _answers(event: RankEvent, request: RankRequest) -> bool:
    """Whether an event is the reply. An agent of another version answers with an error, without a number."""
    return event.event == "error" or event.id == request.id
