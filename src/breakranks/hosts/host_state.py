"""One host as the controller sees it, and the links that go there."""

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
    """One host. ``called`` is how it calls itself in its lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.called = ""
        self.running: TransportProcess | None = None
        self.hello: Hello | None = None
        self.lost: LostHost | None = None
        self.told = False  # which jobs it has
        self.supplied = False  # with what it lacked
        self.until = float("inf")  # when it must have answered
        self.clock = 0.0  # its clock less ours
        self.clock_error = 0.0
        self.pinged = 0.0
        self.heard = 0.0
        self.began = 0.0  # when its transport was started
        self.logged = 0  # lines of its log

    @property
    def who(self) -> str:
        """Whom a line is for."""
        return self.called or ALL


class HostRoster:
    """Who is on a transport, by the name that a host has itself, or by another. It may be ten thousand."""

    def __init__(self, host_states: Sequence[HostState]) -> None:
        self._only = host_states[0] if len(host_states) == 1 else None
        self._called: dict[str, HostState] = {}
        self._names: dict[str, HostState] = {}
        for one in host_states:
            plain = one.name.rpartition("@")[2]
            self._names.setdefault(plain.partition(".")[0], one)
        self._names.update({one.name.rpartition("@")[2]: one for one in host_states})

    def of(self, who: str, aliases: Sequence[str] = ()) -> HostState | None:
        """Who said it."""
        one = self._only or self._called.get(who)
        for word in () if one is not None else (*aliases, who):
            one = one or self._names.get(word) or self._names.get(word.partition(".")[0])
        if one is not None and not one.called:
            one.called = who
            self._called[who] = one
        return one


class PendingRequest:
    """A question to many hosts: who has still to answer, and the answers that nobody has taken yet."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self.began = time.monotonic()
        self.awaited = set(hosts)
        self.answers: list[tuple[str, Reply]] = []

    def take(self) -> list[tuple[str, Reply]]:
        taken, self.answers = self.answers, []
        return taken


class HostLinks:
    """Connections to agents in ranks: a socket here, another there, and messages in between."""

    def __init__(self, selector: selectors.BaseSelector, send: Callable[[HostState, Request], None]) -> None:
        self._selector = selector
        self._send = send
        self._numbers = itertools.count(1)
        self._links: dict[int, tuple[HostState, socket.socket]] = {}

    def connect(self, one: HostState, path: str, theirs: socket.socket) -> None:
        if one.lost is not None or one.running is None:
            theirs.close()
            return
        number = next(self._numbers)
        self._links[number] = (one, theirs)
        self._selector.register(theirs, selectors.EVENT_READ, number)
        self._send(one, OpenLink(0, number, path))

    def carry(self, number: int) -> None:
        """What we have to say."""
        if number not in self._links:
            return  # shut by what came before it in this turn
        one, theirs = self._links[number]
        try:
            data = theirs.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if data:
            self._send(one, LinkData(number, data))
        else:
            self.shut(number)

    def deliver(self, one: HostState, data: LinkData) -> None:
        """What they say. A host has no say in another's links."""
        host_state, theirs = self._links.get(data.link, (None, None))
        if host_state is one and theirs is not None:
            try:
                theirs.sendall(data.data)
            except OSError:
                self.shut(data.link)

    def shut(self, number: int, *, by: HostState | None = None) -> None:
        """``by``: the host itself has shut it, and need not be told."""
        one, theirs = self._links.get(number, (None, None))
        if one is None or theirs is None or (by is not None and by is not one):
            return
        del self._links[number]
        self._selector.unregister(theirs)
        theirs.close()
        if by is None and one.running is not None and one.lost is None:
            self._send(one, CloseLink(number))

    def drop(self, one: HostState) -> None:
        """A host is lost, and all that go there are."""
        for number, (host_state, _) in list(self._links.items()):
            if host_state is one:
                self.shut(number, by=one)

    def close(self) -> None:
        """What was said last still goes: it may be the word that ranks are to stay as they are."""
        for number, (_, theirs) in list(self._links.items()):
            theirs.setblocking(False)
            while number in self._links and self._pending(theirs):
                self.carry(number)
            self.shut(number)

    @staticmethod
    def _pending(theirs: socket.socket) -> bool:
        try:
            return bool(theirs.recv(1, socket.MSG_PEEK))
        except OSError:
            return False
