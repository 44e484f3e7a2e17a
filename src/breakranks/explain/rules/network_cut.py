"""link-cut: data from one host does not reach the other, by the queues of their sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from breakranks.explain.actions import Action, Advise, RunShell
from breakranks.explain.causes import Fact
from breakranks.explain.causes.host_causes import CutConnection, CutQueues, LinkCut, MoreConnections, Unanswered
from breakranks.explain.diagnosis import CERTAIN, LIKELY, Finding
from breakranks.explain.finding_parts import HeldUp
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules.candidate import FindingCandidate, union, victims_evidence, waiting_place
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Host, Rank, Socket

# How often the kernel must have retransmitted the same data: once may be a lost packet.
_SURE_RETRIES = 2
_SURE_SECONDS = 1.0
_SHOWN = 4


class SocketEnd(NamedTuple):
    rank: Rank
    socket: Socket


class NetworkCut(NamedTuple):
    """A connection on which data is retransmitted. ``host`` has the other end; ``far`` is that end, if it was seen in a
    rank of that host."""

    near: SocketEnd
    host: str
    far: SocketEnd | None

    @property
    def pair(self) -> tuple[str, str]:
        first, second = sorted((self.near.rank.host, self.host))
        return first, second

    @property
    def agrees(self) -> bool:
        """Whether the other end looks as it must if no data reaches it: everything that arrived has been read, and what
        it sends itself, if anything, is not acknowledged either."""
        if self.far is None or self.near.socket.retries < _SURE_RETRIES:
            return False
        other = self.far.socket
        return not other.receive_queue and (not other.send_queue or other.retries > 0)


def cut(job: JobView, waiting: list[RankGroup]) -> FindingCandidate | None:
    """Return the candidate for hosts between which no data gets through while ranks wait."""
    if not job.several or not waiting:
        return None
    found = cuts(job)
    if not found:
        return None
    sure = [cut for cut in found if cut.agrees]
    shown = sure or found
    ranks = RankSet(rank for cut in shown for rank in _ranks(cut))
    victims = union(waiting) - ranks
    pairs = list(dict.fromkeys(cut.pair for cut in shown))
    first = max(shown, key=lambda cut: (cut.far is not None, cut.near.socket.retries))
    finding = Finding(
        kind="link-cut",
        culprits=str(ranks),
        victims=str(victims),
        confidence=CERTAIN if sure else LIKELY,
        cause=LinkCut(pairs=tuple(pairs), connection=_connection(job, first)),
        subject=job.subject(ranks),
        held_up=HeldUp(ranks=str(victims), at=waiting_place(waiting), mutual=True) if victims else None,
        victims_at=waiting_place(waiting) if victims else None,
        where=None,
        evidence=(*_evidence(shown), *victims_evidence(job, waiting)),
        next=_next(first),
        grounds=("both-ends" if sure else "one-end",),
    )
    return FindingCandidate(
        finding=finding, needs=_SURE_SECONDS if sure else PATIENCE_SECONDS, culprits=ranks, victims=victims
    )


def cuts(job: JobView) -> list[NetworkCut]:
    """Return the connections to other hosts of the job on which sent data is not acknowledged.

    A process that is stopped or slow looks different: its kernel acknowledges data until its buffers are full and then
    announces that, so nothing is retransmitted.
    """
    stuck = list(_stuck(job))
    if not stuck:
        return []
    seen = {host.name for host in job.snapshot.hosts if host.state == "seen"}
    homes = _homes(job)
    ends = _ends(job, {(end.socket.peer, end.socket.local) for end in stuck})
    found = []
    for near in stuck:
        host = homes.get(_address(near.socket.peer), "")
        if host in seen and host != near.rank.host and near.rank.host in seen:
            other = ends.get((host, near.socket.peer, near.socket.local))
            found.append(NetworkCut(near, host, other))
    return found


def unanswered(job: JobView, hosts: Iterable[Host]) -> tuple[Fact, ...]:
    """Return the unacknowledged data to hosts that could not be inspected: they are down or cut off."""
    known = {host.name: host for host in hosts}
    homes = _homes(job)
    addresses = {address for address, name in homes.items() if name not in known}
    found = [
        Unanswered(
            rank=end.rank.rank,
            host=end.rank.host,
            bytes=end.socket.send_queue,
            peer=end.socket.peer,
            retries=end.socket.retries,
        )
        for end in _stuck(job)
        if _address(end.socket.peer) not in addresses and end.rank.host not in known
    ]
    return tuple(found[:_SHOWN])


def _stuck(job: JobView) -> Iterator[SocketEnd]:
    for rank in job.snapshot.ranks:
        for socket in rank.process.sockets:
            if socket.retries and socket.send_queue and socket.protocol == "tcp" and not _is_local(socket):
                yield SocketEnd(rank, socket)


def _is_local(socket: Socket) -> bool:
    address = _address(socket.peer)
    return address.startswith("127.") or address in ("::1", "") or address == _address(socket.local)


def _address(text: str) -> str:
    """``10.0.0.2`` of ``10.0.0.2:4567``"""
    return text.rpartition(":")[0].strip("[]")


def _homes(job: JobView) -> dict[str, str]:
    """Return the host of each address. An address that several hosts have (a bridge of containers) is left out."""
    found: dict[str, set[str]] = {}
    for host in job.snapshot.hosts:
        for address in host.addresses:
            found.setdefault(address, set()).add(host.name)
    silent = {host.name for host in job.snapshot.hosts if not host.addresses}
    for rank in job.snapshot.ranks if silent else ():
        for socket in rank.process.sockets if rank.host in silent else ():
            if socket.protocol == "tcp" and socket.status == "established":
                found.setdefault(_address(socket.local), set()).add(rank.host)
    return {address: next(iter(names)) for address, names in found.items() if len(names) == 1}


def _ends(job: JobView, wanted: set[tuple[str, str]]) -> dict[tuple[str, str, str], SocketEnd]:
    return {
        (rank.host, socket.local, socket.peer): SocketEnd(rank, socket)
        for rank in job.snapshot.ranks
        for socket in rank.process.sockets
        if (socket.local, socket.peer) in wanted
    }


def _ranks(cut: NetworkCut) -> Iterator[int]:
    yield cut.near.rank.rank
    if cut.far is not None:
        yield cut.far.rank.rank


def _connection(job: JobView, cut: NetworkCut) -> CutConnection:
    socket = cut.near.socket
    return CutConnection(
        near=job.subject(RankSet([cut.near.rank.rank])),
        far=job.subject(RankSet([cut.far.rank.rank])) if cut.far is not None else None,
        peer=socket.peer,
        peer_host=cut.host,
        connecting=socket.status == "connecting",
        retries=socket.retries,
    )


def _evidence(found: list[NetworkCut]) -> tuple[Fact, ...]:
    shown = sorted(found, key=lambda cut: (not cut.agrees, -cut.near.socket.retries))[:_SHOWN]
    facts = tuple(_queues(cut) for cut in shown)
    return (*facts, MoreConnections(count=len(found) - len(shown))) if len(found) > len(shown) else facts


def _queues(cut: NetworkCut) -> CutQueues:
    near = cut.near.socket
    far = cut.far.socket if cut.far is not None else None
    return CutQueues(
        host=cut.near.rank.host,
        local=near.local,
        peer_host=cut.host,
        peer=near.peer,
        unacknowledged=near.send_queue,
        retries=near.retries,
        far_unread=far.receive_queue if far is not None else None,
        far_unacknowledged=far.send_queue if far is not None else 0,
        far_retries=far.retries if far is not None else 0,
    )


def _next(cut: NetworkCut) -> tuple[Action, ...]:
    address = _address(cut.near.socket.peer)
    port = cut.near.socket.peer.rpartition(":")[2]
    host = cut.near.rank.host
    return (
        RunShell(script=f"ping -c 3 {address}", host=host),
        RunShell(script=f"ss -tnoi dst {address}", host=host),
        Advise(what="firewalls", hosts=(host, cut.host), number=int(port) if port.isdigit() else 0),
    )
