"""link-cut: what one host sends, the other does not get. Read from the queues of their sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from breakranks.explain.actions import Action, Advise, RunShell
from breakranks.explain.causes import Fact
from breakranks.explain.causes.host_causes import CutConnection, CutQueues, LinkCut, MoreConnections, Unanswered
from breakranks.explain.diagnosis import CERTAIN, LIKELY, Finding
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules.candidate import Candidate, union, victims_evidence, waiting_place
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS
from breakranks.explain.values import HeldUp
from breakranks.rankset import RankSet
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
        cause=LinkCut(pairs=tuple(pairs), connection=_connection(case, first)),
        subject=case.subject(ranks),
        held_up=HeldUp(ranks=str(victims), at=waiting_place(waiting), mutual=True) if victims else None,
        victims_at=waiting_place(waiting) if victims else None,
        where=None,
        evidence=(*_evidence(shown), *victims_evidence(case, waiting)),
        next=_next(first),
        grounds=("both-ends" if sure else "one-end",),
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


def unanswered(case: JobView, hosts: Iterable[Host]) -> tuple[Fact, ...]:
    """Data that was sent to hosts which could not be looked at, and is not acknowledged: they are down, or cut off."""
    known = {host.name: host for host in hosts}
    homes = _homes(case)
    addresses = {address for address, name in homes.items() if name not in known}
    found = [
        Unanswered(
            rank=end.rank.rank,
            host=end.rank.host,
            bytes=end.socket.send_queue,
            peer=end.socket.peer,
            retries=end.socket.retries,
        )
        for end in _stuck(case)
        if _address(end.socket.peer) not in addresses and end.rank.host not in known
    ]
    return tuple(found[:_SHOWN])


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


def _connection(case: JobView, one: NetworkCut) -> CutConnection:
    socket = one.near.socket
    return CutConnection(
        near=case.subject(RankSet([one.near.rank.rank])),
        far=case.subject(RankSet([one.far.rank.rank])) if one.far is not None else None,
        peer=socket.peer,
        peer_host=one.host,
        connecting=socket.status == "connecting",
        retries=socket.retries,
    )


def _evidence(found: list[NetworkCut]) -> tuple[Fact, ...]:
    shown = sorted(found, key=lambda one: (not one.agrees, -one.near.socket.retries))[:_SHOWN]
    facts = tuple(_queues(one) for one in shown)
    return (*facts, MoreConnections(count=len(found) - len(shown))) if len(found) > len(shown) else facts


def _queues(one: NetworkCut) -> CutQueues:
    near = one.near.socket
    far = one.far.socket if one.far is not None else None
    return CutQueues(
        host=one.near.rank.host,
        local=near.local,
        peer_host=one.host,
        peer=near.peer,
        unacknowledged=near.send_queue,
        retries=near.retries,
        far_unread=far.receive_queue if far is not None else None,
        far_unacknowledged=far.send_queue if far is not None else 0,
        far_retries=far.retries if far is not None else 0,
    )


def _next(one: NetworkCut) -> tuple[Action, ...]:
    address = _address(one.near.socket.peer)
    port = one.near.socket.peer.rpartition(":")[2]
    host = one.near.rank.host
    return (
        RunShell(script=f"ping -c 3 {address}", host=host),
        RunShell(script=f"ss -tnoi dst {address}", host=host),
        Advise(what="firewalls", hosts=(host, one.host), number=int(port) if port.isdigit() else 0),
    )
