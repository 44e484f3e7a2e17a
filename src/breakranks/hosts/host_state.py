"""One host as the controller sees it, and the links to its ranks."""

from __future__ import annotations

import itertools
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Sequence

from breakranks.hosts.framing import ALL
from breakranks.hosts.host_messages import CloseLink, Hello, LinkData, OpenLink, Reply, Request
from breakranks.hosts.transport_process import TransportProcess
from breakranks.hosts.transports import LostHost

_CHUNK_BYTES = 1 << 16


class HostState:
    """One host. ``called`` is its own name, as in its lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.called = ""
        self.running: TransportProcess | None = None
        self.hello: Hello | None = None
        self.lost: LostHost | None = None
        self.told = False  # whether it has reported its jobs
        self.supplied = False  # whether it was sent the code that it lacked
        self.until = float("inf")  # when it must have answered
        self.clock = 0.0  # its clock minus the controller's
        self.clock_error = 0.0
        self.pinged = 0.0
        self.heard = 0.0
        self.began = 0.0  # when its transport was started
        self.logged = 0  # number of lines of its log

    @property
    def who(self) -> str:
        """The receiver in a line for this host."""
        return self.called or ALL


class HostRoster:
    """The hosts of a transport, up to ten thousand, by their own names and by those in the target."""

    def __init__(self, host_states: Sequence[HostState]) -> None:
        self._only = host_states[0] if len(host_states) == 1 else None
        self._called: dict[str, HostState] = {}
        self._names: dict[str, HostState] = {}
        for host in host_states:
            plain = host.name.rpartition("@")[2]
            self._names.setdefault(plain.partition(".")[0], host)
        self._names.update({host.name.rpartition("@")[2]: host for host in host_states})

    def of(self, who: str, aliases: Sequence[str] = ()) -> HostState | None:
        """Return the host that sent a line, if it is known."""
        host = self._only or self._called.get(who)
        for word in () if host is not None else (*aliases, who):
            host = host or self._names.get(word) or self._names.get(word.partition(".")[0])
        if host is not None and not host.called:
            host.called = who
            self._called[who] = host
        return host


class PendingRequest:
    """A request to many hosts: those that have not answered yet, and the answers that were not taken yet."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self.began = time.monotonic()
        self.awaited = set(hosts)
        self.answers: list[tuple[str, Reply]] = []

    def take(self) -> list[tuple[str, Reply]]:
        """Return the new answers."""
        taken, self.answers = self.answers, []
        return taken


class HostLinks:
    """Connections to agents in ranks: a socket here, a socket on the host, and messages between them."""

    def __init__(self, selector: selectors.BaseSelector, send: Callable[[HostState, Request], None]) -> None:
        self._selector = selector
        self._send = send
        self._numbers = itertools.count(1)
        self._links: dict[int, tuple[HostState, socket.socket]] = {}

    def connect(self, host: HostState, path: str, end: socket.socket) -> None:
        """Link the local socket ``end`` to a rank's socket on a host."""
        if host.lost is not None or host.running is None:
            end.close()
            return
        number = next(self._numbers)
        self._links[number] = (host, end)
        self._selector.register(end, selectors.EVENT_READ, number)
        self._send(host, OpenLink(0, number, path))

    def carry(self, number: int) -> None:
        """Send to the host what the local end of a link has written."""
        if number not in self._links:
            return  # closed by an earlier event of this turn
        host, end = self._links[number]
        try:
            data = end.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if data:
            self._send(host, LinkData(number, data))
        else:
            self.shut(number)

    def deliver(self, host: HostState, data: LinkData) -> None:
        """Pass data of a host to the local end of a link. A host cannot write to links of another."""
        owner, end = self._links.get(data.link, (None, None))
        if owner is host and end is not None:
            try:
                end.sendall(data.data)
            except OSError:
                self.shut(data.link)

    def shut(self, number: int, *, by: HostState | None = None) -> None:
        """Close a link. ``by``: the host that closed it and need not be told."""
        host, end = self._links.get(number, (None, None))
        if host is None or end is None or (by is not None and by is not host):
            return
        del self._links[number]
        self._selector.unregister(end)
        end.close()
        if by is None and host.running is not None and host.lost is None:
            self._send(host, CloseLink(number))

    def drop(self, host: HostState) -> None:
        """Close all links to a host that is lost."""
        for number, (owner, _) in list(self._links.items()):
            if owner is host:
                self.shut(number, by=host)

    def close(self) -> None:
        """Close all links. Pending data is sent first: it may be the command to leave ranks as they are."""
        for number, (_, end) in list(self._links.items()):
            end.setblocking(False)
            while number in self._links and self._pending(end):
                self.carry(number)
            self.shut(number)

    @staticmethod
    def _pending(end: socket.socket) -> bool:
        try:
            return bool(end.recv(1, socket.MSG_PEEK))
        except OSError:
            return False
