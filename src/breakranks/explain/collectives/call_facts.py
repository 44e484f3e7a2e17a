"""Causes and facts of recorded calls: ``all_reduce #239 of mesh_tp``, who waits in it, and through which others."""

from __future__ import annotations

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.causes.collective_causes import (
    AllOnHost,
    CallProgress,
    CallsDiffer,
    CallSide,
    CallStalled,
    LastCall,
    MoreWait,
    NoDump,
    NotEntered,
    NotTransferred,
    RingWait,
    Shape,
    SideShape,
    SideWaits,
    WaitStep,
    WholeGroup,
)
from breakranks.explain.collectives.progress import CollectiveProgress, PendingCall
from breakranks.explain.collectives.root_causes import MISMATCH, MISSING, STALLED, RootCause, WaitLayer, sides_of
from breakranks.explain.values import CallName, GroupName, HeldUp, WaitPlace, Where, where_of
from breakranks.rankset import RankSet, short_text
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.recorder_tables import Entry, Operation

_MANY = 8
_SIDES_NAMED = 4


def group_name(ledger: CollectiveProgress, row: int, which: bool = True) -> GroupName:
    """A group by its description, and its members where several bear it and it matters which."""
    group = ledger.group(row)
    if group.description == "default_pg":
        return GroupName(name=group.description, kind="world")
    if group.name.startswith("ranks "):  # a dump that names no groups
        return GroupName(name=group.name, kind="ranks")
    named = group.description not in ("", "undefined")
    alike = sum(1 for other in ledger.snapshot.groups if other.description == group.description)
    members = short_text(ledger.members[row]) if which and (alike > 1 or not named) else ""
    name = group.description if named else group.name
    return GroupName(name=name, kind="named" if named else "numbered", members=members)


def call(ledger: CollectiveProgress, wait: PendingCall, which: bool = True) -> CallName:
    """The call that ranks wait in."""
    if wait.is_transfer:
        return CallName(operation="send" if wait.sends else "recv", peer=wait.peer, sends=wait.sends)
    return entry(ledger, wait.group, wait.entry, which)


def calls(ledger: CollectiveProgress, wait: PendingCall) -> CallName:
    """The same of several groups: without its number and members."""
    if wait.is_transfer:
        return CallName(operation="send" if wait.sends else "recv")
    return CallName(operation=ledger.name(wait.entry.operation), group=group_name(ledger, wait.group, which=False))


def entry(ledger: CollectiveProgress, group: int, one: Entry, which: bool = True) -> CallName:
    return CallName(operation=ledger.name(one.operation), number=one.number, group=group_name(ledger, group, which))


def kind(ledger: CollectiveProgress, wait: PendingCall) -> object:
    """Equal for calls that may be shown as one: the same operation in groups of the same description."""
    group = ledger.group(wait.group)
    if wait.is_transfer:
        return "send" if wait.sends else "recv"
    return (ledger.name(wait.entry.operation), group.description or group.name)


def newest(ledger: CollectiveProgress, rank: int) -> tuple[int, Entry] | None:
    """The last call that a rank made, and in which group."""
    calls = [(track.group, track.last) for track in ledger.recorders[rank].tracks if track.last is not None]
    return max(calls, key=lambda one: one[1].record, default=None)


def cause_of(ledger: CollectiveProgress, cause: RootCause, *, last: bool = False) -> Cause:
    """What is the matter, by the recorders alone. ``last``: with what the culprits called last."""
    if cause.kind == MISMATCH:
        return _mismatch(ledger, cause)
    if cause.ring:
        return _ring(ledger, cause)
    assert cause.wait is not None
    if cause.kind == STALLED:
        members = ledger.members[cause.wait.group]
        return CallStalled(
            call=call(ledger, cause.wait),
            members=len(members),
            only=str(members) if len(members) == 1 else "",
            inside=str(cause.culprits) if cause.culprits != members else "",
        )
    known = cause.culprits & ledger.known
    said = _last_call(ledger, known) if last and known else None
    if cause.wait.is_transfer:
        return NotTransferred(waiter=str(cause.steps[0].ranks), sends=cause.wait.sends, last=said)
    if not known:
        return NoDump(call=call(ledger, cause.wait))
    return NotEntered(verb="entered", call=call(ledger, cause.wait), behind=_behind(ledger, cause), last=said)


def _behind(ledger: CollectiveProgress, cause: RootCause) -> int:
    """By how many calls of that group the culprit is behind, where it is more than one."""
    wait = cause.wait
    if wait is None or wait.is_transfer:
        return 0
    lags = {wait.entry.number - ledger.reached(wait.group, rank) for rank in cause.culprits & ledger.known}
    if len(lags) != 1 or lags == {1} or not all(rank in ledger.tracks[wait.group] for rank in cause.culprits):
        return 0
    return lags.pop()


def held_up(cause: RootCause) -> HeldUp | None:
    """Who waits for the culprits of a missing call, and how many of those through others."""
    if cause.kind != MISSING or (cause.wait is not None and cause.wait.is_transfer and len(cause.victims) == 1):
        return None
    through = RankSet()
    groups = set()
    for step in cause.steps:
        if step.depth > 1:
            through |= step.ranks
            groups |= {wait.group for wait in step.waits}
    return HeldUp(ranks=str(cause.victims), through=len(through), groups=len(groups), most=_MANY)


def _last_call(ledger: CollectiveProgress, ranks: RankSet) -> LastCall:
    """Where the culprit was when it was last heard of."""
    last = newest(ledger, ranks.first)
    if last is None:
        return LastCall(rank=ranks.first)
    frame = innermost_own(ledger.snapshot.stack(last[1].stack))
    return LastCall(rank=ranks.first, call=entry(ledger, *last), where=where_of(frame))


def _mismatch(ledger: CollectiveProgress, cause: RootCause) -> CallsDiffer:
    one = cause.mismatch
    assert one is not None
    operations = [ledger.operation(row) for _, row in one.sides]
    sides = sorted(one.sides, key=lambda side: -len(side[0]))[:_SIDES_NAMED]
    return CallsDiffer(
        number=one.number,
        group=group_name(ledger, one.group),
        sides=tuple(SideShape(ranks=str(ranks), shape=shape(ledger, row, operations)) for ranks, row in sides),
    )


def shape(ledger: CollectiveProgress, row: int, among: list[Operation]) -> Shape:
    """An operation with what tells it from the others: its sizes, its types."""
    one = ledger.operation(row)
    same = [other for other in among if other.name == one.name]
    inputs = outputs = ""
    if one.inputs and len({(other.inputs, other.outputs) for other in same}) > 1:
        if len({other.inputs for other in same}) > 1:
            inputs = one.inputs
        else:
            outputs = one.outputs
    elif one.inputs and len({other.name for other in among}) > 1:
        inputs = one.inputs
    types = one.types if one.types and len({other.types for other in same}) > 1 else ""
    return Shape(operation=ledger.name(row), inputs=inputs, outputs=outputs, types=types)


def _ring(ledger: CollectiveProgress, cause: RootCause) -> RingWait:
    return RingWait(
        ranks=str(sides_of(cause)),
        sides=tuple(CallSide(ranks=str(ranks), call=call(ledger, wait)) for ranks, wait in cause.ring[:_MANY]),
        transfers=all(wait.is_transfer for _, wait in cause.ring),
        more=max(0, len(cause.ring) - _MANY),
    )


def proof(ledger: CollectiveProgress, cause: RootCause) -> tuple[Fact, ...]:
    """The chain from the culprits to the last victim, a fact for each kind of wait."""
    found: list[Fact] = []
    if cause.mismatch is not None:
        operations = [ledger.operation(row) for _, row in cause.mismatch.sides]
        for ranks, row in cause.mismatch.sides[:_MANY]:
            where = _where(ledger, ranks.first, cause.mismatch.group, cause.mismatch.number)
            found.append(SideShape(ranks=str(ranks), shape=shape(ledger, row, operations), where=where))
    for ranks, wait in cause.ring[:_MANY]:
        where = _where(ledger, ranks.first, wait.group, wait.entry.number) if not wait.is_transfer else None
        found.append(
            SideWaits(
                ranks=str(ranks), call=call(ledger, wait), where=where, others=str(wait.others), behind=wait.is_order
            )
        )
    found += [_step(ledger, step) for step in cause.steps[:_MANY]]
    if len(cause.steps) > _MANY:
        more = RankSet()
        for step in cause.steps[_MANY:]:
            more |= step.ranks
        found.append(MoreWait(ranks=len(more)))
    if cause.kind == MISSING:
        found += _progress(ledger, cause)
    return tuple(found)


def _step(ledger: CollectiveProgress, step: WaitLayer) -> WaitStep:
    first = step.waits[0]
    name = call(ledger, first)
    if len(step.waits) > 1:
        numbers = {wait.entry.number for wait in step.waits}
        name = CallName(
            operation=ledger.name(first.entry.operation),
            number=numbers.pop() if len(numbers) == 1 else None,
            group=group_name(ledger, first.group, which=False),
            groups=len(step.waits),
        )
    return WaitStep(ranks=str(step.ranks), call=name, others=str(step.waits_for))


def _progress(ledger: CollectiveProgress, cause: RootCause) -> list[CallProgress]:
    wait = cause.wait
    if wait is None or wait.is_transfer:
        return []
    found = []
    for rank in list(cause.culprits & ledger.known)[:2]:
        track = ledger.tracks[wait.group].get(rank)
        group = group_name(ledger, wait.group)
        if track is None:
            found.append(CallProgress(rank=rank, group=group))
        else:
            found.append(
                CallProgress(
                    rank=rank,
                    group=group,
                    reached=track.reached,
                    completed=track.completed,
                    others=wait.entry.number,
                )
            )
    return found


def _where(ledger: CollectiveProgress, rank: int, group: int, number: int) -> Where | None:
    """Where a rank made a call, as its recorder has it."""
    track = ledger.tracks[group].get(rank)
    for one in (*track.pending, *((track.last,) if track.last is not None else ())) if track is not None else ():
        if one.number == number and one.stack:
            return where_of(innermost_own(ledger.snapshot.stack(one.stack)))
    return None


def victims_at(ledger: CollectiveProgress, cause: RootCause) -> WaitPlace | None:
    """What most of the victims are in."""
    if cause.wait is not None:
        return WaitPlace(call=call(ledger, cause.wait))
    if cause.mismatch is not None:
        number, group = cause.mismatch.number, group_name(ledger, cause.mismatch.group)
        return WaitPlace(call=CallName(operation="call", number=number, group=group))
    return None


def trait(ledger: CollectiveProgress, ranks: RankSet) -> tuple[Fact, ...]:
    """What several culprits have in common: one group, one host."""
    if len(ranks) < 2:
        return ()
    hosts = {one.host for one in ledger.snapshot.ranks if one.rank in ranks}
    if len(hosts) == 1 and "" not in hosts and ledger.snapshot.remote_ranks:
        return (AllOnHost(ranks=str(ranks), host=hosts.pop()),)
    for row, group in enumerate(ledger.snapshot.groups):
        if ledger.members[row] == ranks and group.source == "config" and group.description != "default_pg":
            return (WholeGroup(ranks=str(ranks), group=group_name(ledger, row)),)
    return ()
