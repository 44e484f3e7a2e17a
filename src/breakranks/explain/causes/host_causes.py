"""Hosts that could not be inspected, links that carry no data, clocks that differ."""

from __future__ import annotations

from msgspec import Struct

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.finding_parts import Subject


class HostsLost(Fact, frozen=True, kw_only=True):
    """Hosts, and why they could not be inspected, in the words of the transport."""

    hosts: tuple[str, ...]
    reason: str


class Unreached(Cause, frozen=True, kw_only=True):
    """Ranks whose hosts could not be inspected or, if ``lost``, were lost during the inspection."""

    hosts: tuple[HostsLost, ...]
    lost: bool


class Unanswered(Fact, frozen=True, kw_only=True):
    """Unacknowledged data for a host that could not be inspected."""

    rank: int
    host: str
    bytes: int
    peer: str
    retries: int


class CutConnection(Struct, frozen=True, kw_only=True):
    """A connection on which data is retransmitted: from ``near`` to ``far`` or, if no rank has that end, to an address
    of a host."""

    near: Subject
    far: Subject | None
    peer: str
    peer_host: str
    connecting: bool
    retries: int


class LinkCut(Cause, frozen=True, kw_only=True):
    pairs: tuple[tuple[str, str], ...]
    connection: CutConnection


class CutQueues(Fact, frozen=True, kw_only=True):
    """Both ends of a connection that is cut; ``far_unread`` None: no rank of the host has the other end."""

    host: str
    local: str
    peer_host: str
    peer: str
    unacknowledged: int
    retries: int
    far_unread: int | None = None
    far_unacknowledged: int = 0
    far_retries: int = 0


class MoreConnections(Fact, frozen=True, kw_only=True):
    count: int


class ClockOffset(Struct, frozen=True, kw_only=True):
    host: str
    seconds: float


class ClocksDiffer(Cause, frozen=True, kw_only=True):
    """``offsets`` from most of the hosts. Of two hosts, one offset from the ``other``."""

    offsets: tuple[ClockOffset, ...]
    other: str = ""


class ClockRead(Fact, frozen=True, kw_only=True):
    host: str
    seconds: float
    error: float


class TimesCorrected(Fact, frozen=True, kw_only=True):
    pass


class SameCause(Fact, frozen=True, kw_only=True):
    """One of several similar causes of ranks of one host."""

    subject: Subject
    cause: Cause
