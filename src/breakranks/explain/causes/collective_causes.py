"""Ranks that others wait for, and ranks that wait for each other: collectives, transfers, rendezvous."""

from __future__ import annotations

from msgspec import Struct

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.finding_parts import CallName, Doing, GroupName, Subject, WaitPlace, Where

# ---- ranks without a process


class NeverCame(Cause, frozen=True, kw_only=True):
    """``host``: the only inspected host; empty: this host or, if ``several``, all hosts of the target."""

    host: str = ""
    several: bool = False


class HasGone(Cause, frozen=True, kw_only=True):
    """``call``: the last call that it must have taken part in."""

    call: CallName


class RankExited(Cause, frozen=True, kw_only=True):
    """``host``: where it ran, if the job has several hosts; empty: its launcher is on this host."""

    host: str = ""
    several: bool = False


class NotHere(Cause, frozen=True, kw_only=True):
    host: str = ""
    several: bool = False


class MissingDetail(Fact, frozen=True, kw_only=True):
    """How it is known that ranks are missing, in the words of the host that looked for them."""

    text: str


# ---- ranks that have not arrived


class LastCall(Struct, frozen=True, kw_only=True):
    """The last call of a rank; ``call`` None: none is recorded."""

    rank: int
    call: CallName | None = None
    where: Where | None = None


class NotEntered(Cause, frozen=True, kw_only=True):
    """``verb``: ``entered``, ``joined`` or ``answered``. ``behind``: by how many calls, if it is more than one.
    ``doing``: what the culprit does instead; ``last``: its last call, by its dump."""

    verb: str
    call: CallName
    behind: int = 0
    doing: Doing | None = None
    last: LastCall | None = None


class NoDump(Cause, frozen=True, kw_only=True):
    call: CallName


class NotTransferred(Cause, frozen=True, kw_only=True):
    """The culprit has not called recv for a send of ``waiter`` (``sends``), or send for a recv."""

    waiter: str
    sends: bool
    last: LastCall | None = None


class RanksWait(Fact, frozen=True, kw_only=True):
    """Ranks in a call that ``absent`` ranks have not entered, or have made ``behind`` another call. For ``unknown``
    ranks it is not known."""

    ranks: str
    doing: Doing
    call: CallName | None = None
    absent: str = ""
    behind: bool = False
    unknown: str = ""
    stands: float = 0.0


class OwnTimeout(Fact, frozen=True, kw_only=True):
    seconds: float


class RanksAt(Fact, frozen=True, kw_only=True):
    ranks: str
    doing: Doing


class RanksAtLine(Fact, frozen=True, kw_only=True):
    ranks: str
    where: Where


class AllOnHost(Fact, frozen=True, kw_only=True):
    ranks: str
    host: str


class WholeGroup(Fact, frozen=True, kw_only=True):
    ranks: str
    group: GroupName


# ---- how far ranks have come in their loops


class CounterSpan(Struct, frozen=True, kw_only=True):
    """How far ranks are in a loop; ``function`` is given only where several have a counter of that name."""

    name: str
    low: int
    high: int
    function: str = ""


class CounterDiffers(Fact, frozen=True, kw_only=True):
    """A counter, and the ranks that have each value."""

    name: str
    values: tuple[tuple[int, str], ...]


class RanksBehind(Fact, frozen=True, kw_only=True):
    ranks: str
    span: CounterSpan
    others: int
    others_span: CounterSpan


class RanksAtSteps(Fact, frozen=True, kw_only=True):
    """``ranks`` empty: all."""

    ranks: str
    spans: tuple[CounterSpan, ...]


# ---- ranks that wait for each other


class InTransfer(Fact, frozen=True, kw_only=True):
    rank: int
    op: str
    peer: int | None
    where: Where | None


class PeersWait(Cause, frozen=True, kw_only=True):
    """Ranks in sends and receives. ``sides`` if they are few and in different places; else the operation of one of
    them, and the ``ring``."""

    sides: tuple[InTransfer, ...] = ()
    ring: tuple[int, ...] = ()
    op: str = ""
    where: Where | None = None


class CallSide(Struct, frozen=True, kw_only=True):
    ranks: str
    call: CallName
    where: Where | None = None


class DifferentPlaces(Cause, frozen=True, kw_only=True):
    """``of``: ``rendezvous``, ``collectives``, or empty."""

    of: str
    sides: tuple[CallSide, ...]


class AllSeenWait(Cause, frozen=True, kw_only=True):
    count: int
    at: WaitPlace
    unseen: str


class NoneComesOut(Cause, frozen=True, kw_only=True):
    count: int
    doing: Doing
    differs: CounterDiffers | None = None


class CodeDecides(Fact, frozen=True, kw_only=True):
    pass


class RingWait(Cause, frozen=True, kw_only=True):
    """``transfers``: sends and receives only. ``more``: sides that are not listed."""

    ranks: str
    sides: tuple[CallSide, ...]
    transfers: bool
    more: int = 0


class SideWaits(Fact, frozen=True, kw_only=True):
    """``behind``: the others have made the call behind another one."""

    ranks: str
    call: CallName
    where: Where | None
    others: str
    behind: bool


# ---- calls that differ, or do not end


class Shape(Struct, frozen=True, kw_only=True):
    """An operation with what distinguishes it from the others."""

    operation: str
    inputs: str = ""
    outputs: str = ""
    types: str = ""


class SideShape(Fact, frozen=True, kw_only=True):
    ranks: str
    shape: Shape
    where: Where | None = None


class CallsDiffer(Cause, frozen=True, kw_only=True):
    number: int
    group: GroupName
    sides: tuple[SideShape, ...]


class RootSide(Struct, frozen=True, kw_only=True):
    root: str
    ranks: str


class RootsDiffer(Cause, frozen=True, kw_only=True):
    call: CallName
    sides: tuple[RootSide, ...]


class FromArguments(Fact, frozen=True, kw_only=True):
    pass


class CallStalled(Cause, frozen=True, kw_only=True):
    """``only``: its only member. ``inside``: the ranks that have not returned, if not all of them."""

    call: CallName
    members: int
    only: str = ""
    inside: str = ""


class WaitStep(Fact, frozen=True, kw_only=True):
    ranks: str
    call: CallName
    others: str


class MoreWait(Fact, frozen=True, kw_only=True):
    ranks: int


class CallProgress(Fact, frozen=True, kw_only=True):
    """How far a rank is in a group; ``reached`` None: it has recorded no call of it."""

    rank: int
    group: GroupName
    reached: int | None = None
    completed: int = 0
    others: int = 0


# ---- gathers that need every rank


class Gather(Struct, frozen=True, kw_only=True):
    """``fsdp``: it gathers the parameters of an FSDP model, of ``module`` if that is known; else a sharded tensor."""

    subject: Subject
    fsdp: bool
    module: str
    where: Where | None


class LoneGather(Cause, frozen=True, kw_only=True):
    gather: Gather
    number: int
    group: GroupName
    others: tuple[CallSide, ...]


class GatherNeedsAll(Fact, frozen=True, kw_only=True):
    gather: Gather


class GatherAdvice(Fact, frozen=True, kw_only=True):
    fsdp: bool


# ---- a job that starts, and one that moves


class LauncherWaits(Cause, frozen=True, kw_only=True):
    """``peer``: the address that it cannot reach."""

    launcher: str
    pid: int
    peer: str


class LauncherIn(Fact, frozen=True, kw_only=True):
    op: str
    seconds: float


class LauncherCommand(Fact, frozen=True, kw_only=True):
    command: str


class Connecting(Fact, frozen=True, kw_only=True):
    peer: str


class RanksMove(Cause, frozen=True, kw_only=True):
    moving: int
    seen: int
