"""A connection to the agent of one rank."""

from __future__ import annotations

import socket
from contextlib import suppress

from breakranks.backend.found_agents import AgentPlace, FoundAgent
from breakranks.backend.rank_decoder import read_event
from breakranks.rank_messages import RankEvent, RankRequest, RankState, to_line

_MAX_MESSAGE_BYTES = 1 << 26


class RankConnection:
    """Messages to and from one agent. ``state`` is its last one, and ``greeted`` whether it has sent one yet."""

    def __init__(self, found: FoundAgent, place: AgentPlace) -> None:
        self.found = found
        self.rank = found.rank
        self.state = RankState(turn=0, rank=found.rank, world=0, pid=found.pid)
        self.greeted = False
        self.closed = False
        self._heard = bytearray()
        self._connection = place.connect(found)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, request: RankRequest) -> None:
        """Send a request. That a rank has gone is noticed by the next ``receive``."""
        try:
            self._connection.sendall(to_line(request))
        except OSError:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # so that it can be read to its end

    def receive(self) -> list[RankEvent]:
        """Return the events that have come, when there are some. Closes the connection at its end, or at an odd one."""
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
        events = []
        for line in lines:
            event = read_event(line)
            if event is None:
                self.close()
                break
            events.append(event)
        return events

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._connection.close()
