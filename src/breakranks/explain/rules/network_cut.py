"""link-cut: what one host sends, the other does not get. Read from the queues of their sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from breakranks.explain import phrases
from breakranks.explain.diagnosis import CERTAIN, LIKELY, Finding
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules.candidate import Candidate, union, victims_evidence, waiting_place
from breakranks.explain.rules.command_host import on
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.model import Host, Rank, Socket

# How often the kernel must have sent the same data in vain: once may be a packet that was lost on the way.
_SURE = 2
_SURE_SECONDS = 1.0  # seconds
_SHOWN = 4


class SocketEnd(NamedTuple):
    rank: Rank
    socket: Socket


class NetworkCut(NamedTuple):
    """A connection on which data is sent again and again. ``host`` has the other end, ``far`` is that end, if it was
    seen: in a rank of that host."""

    near: SocketEnd
    host: str
    far: SocketEnd | None

    @property
    def pair(self) -> tuple[str, str]:
        first, second = sorted((self.near.rank.host, self.host))
        return first, second

    @property
    def agrees(self) -> bool:
        """Whether the other end looks as it must if nothing reaches it: all that came has been read, and what it sends
        itself, if anything, is not answered either."""
        if self.far is None or self.near.socket.retries < _SURE:
            return False
        other = self.far.socket
        return not other.receive_queue and (not other.send_queue or other.retries > 0)


def cut(case: JobView, waiting: list[RankGroup]) -> Candidate | None:
    """A pair of hosts between which data does not get through, while ranks wait."""
    if not case.several or not waiting:
        return None
    found = cuts(case)
    if not found:
        return None
    sure = [one for one in found if one.agrees]
    shown = sure or found
    ranks = RankSet(rank for one in shown for rank in _ranks(one))
    victims = union(waiting) - ranks
    pairs = list(dict.fromkeys(one.pair for one in shown))
    first = max(shown, key=lambda one: (one.far is not None, one.near.socket.retries))
    finding = Finding(
        kind="link-cut",
        culprits=str(ranks),
        victims=str(victims),
        confidence=CERTAIN if sure else LIKELY,
        summary=f"{between(pairs)}: {_told(case, first)}"
        + (
            f"; {ranks_text(victims)} wait{'s' if len(victims) == 1 else ''} in {waiting_place(waiting)}"
            if victims
            else ""
        ),
        where=None,
        evidence=(*_evidence(shown), *victims_evidence(case, waiting)),
        next=_next(first),
        because="both ends of the connection were seen, and agree"
        if sure
        else "one end was seen: what it sends is not answered",
        victims_where=waiting_place(waiting) if victims else "",
    )
    return Candidate(
        finding=finding, needs=_SURE_SECONDS if sure else PATIENCE_SECONDS, culprits=ranks, victims=victims
    )


def cuts(case: JobView) -> list[NetworkCut]:
    """Connections to other hosts of the job on which sent data is not acknowledged.

    A process that is stopped, or slow, does not look like that: its kernel acknowledges for it until its buffers are
    full, and then says so; nothing is sent again.
    """
    stuck = list(_stuck(case))
    if not stuck:
        return []
    seen = {host.name for host in case.snapshot.hosts if host.state == "seen"}
    homes = _homes(case)
    ends = _ends(case, {(end.socket.peer, end.socket.local) for end in stuck})
    found = []
    for near in stuck:
        host = homes.get(_address(near.socket.peer), "")
        if host in seen and host != near.rank.host and near.rank.host in seen:
            other = ends.get((host, near.socket.peer, near.socket.local))
            found.append(NetworkCut(near, host, other))
    return found


def unanswered(case: JobView, hosts: Iterable[Host]) -> tuple[str, ...]:
    """Data that was sent to hosts which could not be looked at, and is not acknowledged: they are down, or cut off."""
    known = {host.name: host for host in hosts}
    homes = _homes(case)
    addresses = {address for address, name in homes.items() if name not in known}
    lines = [
        f"rank {end.rank.rank} ({end.rank.host}) has {end.socket.send_queue:,} bytes for {end.socket.peer} that nobody "
        f"acknowledges, sent again {_times(end.socket.retries)}"
        for end in _stuck(case)
        if _address(end.socket.peer) not in addresses and end.rank.host not in known
    ]
    return tuple(lines[:_SHOWN])


def _stuck(case: JobView) -> Iterator[SocketEnd]:
    for rank in case.snapshot.ranks:
        for socket in rank.process.sockets:
            if socket.retries and socket.send_queue and socket.protocol == "tcp" and not _is_local(socket):
                yield SocketEnd(rank, socket)


def _is_local(socket: Socket) -> bool:
    address = _address(socket.peer)
    return address.startswith("127.") or address in ("::1", "") or address == _address(socket.local)


def _address(text: str) -> str:
    """``10.0.0.2`` of ``10.0.0.2:4567``"""
    return text.rpartition(":")[0].strip("[]")


def _homes(case: JobView) -> dict[str, str]:
    """Which host has an address. One that several have (a bridge of containers) says nothing."""
    found: dict[str, set[str]] = {}
    for host in case.snapshot.hosts:
        for address in host.addresses:
            found.setdefault(address, set()).add(host.name)
    silent = {host.name for host in case.snapshot.hosts if not host.addresses}
    for rank in case.snapshot.ranks if silent else ():
        for socket in rank.process.sockets if rank.host in silent else ():
            if socket.protocol == "tcp" and socket.status == "established":
                found.setdefault(_address(socket.local), set()).add(rank.host)
    return {address: next(iter(names)) for address, names in found.items() if len(names) == 1}


def _ends(case: JobView, wanted: set[tuple[str, str]]) -> dict[tuple[str, str, str], SocketEnd]:
    return {
        (rank.host, socket.local, socket.peer): SocketEnd(rank, socket)
        for rank in case.snapshot.ranks
        for socket in rank.process.sockets
        if (socket.local, socket.peer) in wanted
    }


def _ranks(one: NetworkCut) -> Iterator[int]:
    yield one.near.rank.rank
    if one.far is not None:
        yield one.far.rank.rank


def between(pairs: list[tuple[str, str]]) -> str:
    """
    >>> between([("n1", "n3"), ("n2", "n3")]), between([("n1", "n2")])
    ('n3 is cut off from n[1-2]', 'the network between n1 and n2 carries no data')
    """
    shared = set(pairs[0]).intersection(*pairs[1:])
    if len(pairs) > 1 and shared:
        host = shared.pop()
        return f"{host} is cut off from {fold(name for pair in pairs for name in pair if name != host)}"
    told = [f"{first} and {second}" for first, second in pairs[:_SHOWN]]
    more = f" and {len(pairs) - _SHOWN} more pairs" if len(pairs) > _SHOWN else ""
    return f"the network between {', between '.join(told)}{more} carries no data"


def _told(case: JobView, one: NetworkCut) -> str:
    socket = one.near.socket
    who = case.who(RankSet([one.near.rank.rank]))
    to = case.who(RankSet([one.far.rank.rank])) if one.far is not None else f"{socket.peer} ({one.host})"
    if socket.status == "connecting":
        return f"{who} tries to connect to {to}, and has tried again {_times(socket.retries)}"
    return f"what {who} sends to {to} is not acknowledged, and was sent again {_times(socket.retries)}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _evidence(found: list[NetworkCut]) -> tuple[str, ...]:
    lines = []
    for one in sorted(found, key=lambda one: (not one.agrees, -one.near.socket.retries))[:_SHOWN]:
        near = one.near.socket
        text = (
            f"{one.near.rank.host} {near.local} to {one.host} {near.peer}: {near.send_queue:,} bytes unacknowledged, "
        )
        text += f"sent again {_times(near.retries)}"
        if one.far is None:
            text += f"; no rank of {one.host} has the other end"
        else:
            far = one.far.socket
            text += f"; the other end has {far.receive_queue:,} bytes unread, {far.send_queue:,} unacknowledged"
            text += f", sent again {_times(far.retries)}" if far.retries else ""
        lines.append(text)
    if len(found) > len(lines):
        lines.append(f"and {len(found) - len(lines)} more connections like these")
    return tuple(lines)


def _next(one: NetworkCut) -> tuple[str, ...]:
    address = _address(one.near.socket.peer)
    port = one.near.socket.peer.rpartition(":")[2]
    return (
        on(one.near.rank.host, f"ping -c 3 {address}"),
        on(one.near.rank.host, f"ss -tnoi dst {address}"),
        f"look at firewalls and switches between {phrases.listed([one.near.rank.host, one.host])} (port {port})",
    )
