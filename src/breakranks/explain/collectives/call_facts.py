"""Causes and facts about recorded calls: ``all_reduce #239 of mesh_tp``, the ranks that wait in it, and through which
others."""

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
from breakranks.explain.collectives.collective_progress import CollectiveProgress, PendingCall
from breakranks.explain.collectives.root_causes import MISMATCH, MISSING, STALLED, RootCause, WaitLayer, sides_of
from breakranks.explain.finding_parts import CallName, GroupName, HeldUp, WaitPlace, Where, where_of
from breakranks.rankset import RankSet, short_text
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.recorder_tables import Entry, Group, Operation

_MANY = 8
_SIDES_NAMED = 4


def group_name(progress: CollectiveProgress, row: int, which: bool = True) -> GroupName:
    """Return a group by its description, with its members where several groups have that description and ``which`` is
    true."""
    group = progress.group(row)
    if group.description == "default_pg":
        return GroupName(name=group.description, kind="world")
    if group.unnamed:
        return GroupName(name=group.name, kind="ranks")
    named = has_description(group)
    alike = sum(1 for other in progress.snapshot.groups if other.description == group.description)
    members = short_text(progress.members[row]) if which and (alike > 1 or not named) else ""
    name = group.description if named else group.name
    return GroupName(name=name, kind="named" if named else "numbered", members=members)


def has_description(group: Group) -> bool:
    """Whether the job has named the group. ``undefined`` is what torch records for a group without a description."""
    return group.description not in ("", "undefined")


def call(progress: CollectiveProgress, wait: PendingCall, which: bool = True) -> CallName:
    """Return the call that ranks wait in."""
    if wait.is_transfer:
        return CallName(operation="send" if wait.sends else "recv", peer=wait.peer, sends=wait.sends)
    return entry(progress, wait.group, wait.entry, which)


def calls(progress: CollectiveProgress, wait: PendingCall) -> CallName:
    """Return the call as it is for several groups: without its number and members."""
    if wait.is_transfer:
        return CallName(operation="send" if wait.sends else "recv")
    return CallName(operation=progress.name(wait.entry.operation), group=group_name(progress, wait.group, which=False))


def entry(progress: CollectiveProgress, group: int, entry: Entry, which: bool = True) -> CallName:
    return CallName(
        operation=progress.name(entry.operation), number=entry.number, group=group_name(progress, group, which)
    )


def kind(progress: CollectiveProgress, wait: PendingCall) -> object:
    """Return a key that is equal for calls that may be shown as one: the same operation in groups of the same
    description."""
    group = progress.group(wait.group)
    if wait.is_transfer:
        return "send" if wait.sends else "recv"
    return (progress.name(wait.entry.operation), group.description or group.name)


def newest(progress: CollectiveProgress, rank: int) -> tuple[int, Entry] | None:
    """Return the last call of a rank, with its group."""
    calls = [(track.group, track.last) for track in progress.recorders[rank].tracks if track.last is not None]
    return max(calls, key=lambda one: one[1].record, default=None)


def cause_of(progress: CollectiveProgress, cause: RootCause, *, last: bool = False) -> Cause:
    """Return the cause as the recorders alone show it. ``last``: with the last call of the culprits."""
    if cause.kind == MISMATCH:
        return _mismatch(progress, cause)
    if cause.ring:
        return _ring(progress, cause)
    assert cause.wait is not None
    if cause.kind == STALLED:
        members = progress.members[cause.wait.group]
        return CallStalled(
            call=call(progress, cause.wait),
            members=len(members),
            only=str(members) if len(members) == 1 else "",
            inside=str(cause.culprits) if cause.culprits != members else "",
        )
    known = cause.culprits & progress.known
    said = _last_call(progress, known) if last and known else None
    if cause.wait.is_transfer:
        return NotTransferred(waiter=str(cause.steps[0].ranks), sends=cause.wait.sends, last=said)
    if not known:
        return NoDump(call=call(progress, cause.wait))
    return NotEntered(
        verb="entered", call=call(progress, cause.wait), behind=behind(progress, cause.wait, cause.culprits), last=said
    )


def behind(progress: CollectiveProgress, wait: PendingCall, ranks: RankSet) -> int:
    """Return by how many calls of the group these ranks are behind, if it is more than one and the same for all; else
    0."""
    if wait.is_transfer or not all(rank in progress.tracks[wait.group] for rank in ranks):
        return 0  # the calls of a rank without a track are not known
    lags = {wait.entry.number - progress.reached(wait.group, rank) for rank in ranks}
    return lags.pop() if len(lags) == 1 and lags != {1} else 0


def held_up(cause: RootCause) -> HeldUp | None:
    """Return the ranks that wait for the culprits of a missing call, and how many of them wait through others."""
    if cause.kind != MISSING or (cause.wait is not None and cause.wait.is_transfer and len(cause.victims) == 1):
        return None
    through = RankSet()
    groups = set()
    for step in cause.steps:
        if step.depth > 1:
            through |= step.ranks
            groups |= {wait.group for wait in step.waits}
    return HeldUp(ranks=str(cause.victims), through=len(through), groups=len(groups), most=_MANY)


def _last_call(progress: CollectiveProgress, ranks: RankSet) -> LastCall:
    """Return the last recorded call of the culprit."""
    last = newest(progress, ranks.first)
    if last is None:
        return LastCall(rank=ranks.first)
    frame = innermost_own(progress.snapshot.stack(last[1].stack))
    return LastCall(rank=ranks.first, call=entry(progress, *last), where=where_of(frame))


def _mismatch(progress: CollectiveProgress, cause: RootCause) -> CallsDiffer:
    mismatch = cause.mismatch
    assert mismatch is not None
    operations = [progress.operation(row) for _, row in mismatch.sides]
    sides = sorted(mismatch.sides, key=lambda side: -len(side[0]))[:_SIDES_NAMED]
    return CallsDiffer(
        number=mismatch.number,
        group=group_name(progress, mismatch.group),
        sides=tuple(SideShape(ranks=str(ranks), shape=shape(progress, row, operations)) for ranks, row in sides),
    )


def shape(progress: CollectiveProgress, row: int, among: list[Operation]) -> Shape:
    """Return an operation with what distinguishes it from the others: its sizes, its types."""
    operation = progress.operation(row)
    same = [other for other in among if other.name == operation.name]
    inputs = outputs = ""
    if operation.inputs and len({(other.inputs, other.outputs) for other in same}) > 1:
        if len({other.inputs for other in same}) > 1:
            inputs = operation.inputs
        else:
            outputs = operation.outputs
    elif operation.inputs and len({other.name for other in among}) > 1:
        inputs = operation.inputs
    types = operation.types if operation.types and len({other.types for other in same}) > 1 else ""
    return Shape(operation=progress.name(row), inputs=inputs, outputs=outputs, types=types)


def _ring(progress: CollectiveProgress, cause: RootCause) -> RingWait:
    return RingWait(
        ranks=str(sides_of(cause)),
        sides=tuple(CallSide(ranks=str(ranks), call=call(progress, wait)) for ranks, wait in cause.ring[:_MANY]),
        transfers=all(wait.is_transfer for _, wait in cause.ring),
        more=max(0, len(cause.ring) - _MANY),
    )


def proof(progress: CollectiveProgress, cause: RootCause) -> tuple[Fact, ...]:
    """Return the chain from the culprits to the last victim, one fact for each kind of wait."""
    found: list[Fact] = []
    if cause.mismatch is not None:
        operations = [progress.operation(row) for _, row in cause.mismatch.sides]
        for ranks, row in cause.mismatch.sides[:_MANY]:
            where = _where(progress, ranks.first, cause.mismatch.group, cause.mismatch.number)
            found.append(SideShape(ranks=str(ranks), shape=shape(progress, row, operations), where=where))
    for ranks, wait in cause.ring[:_MANY]:
        where = _where(progress, ranks.first, wait.group, wait.entry.number) if not wait.is_transfer else None
        found.append(
            SideWaits(
                ranks=str(ranks), call=call(progress, wait), where=where, others=str(wait.others), behind=wait.is_order
            )
        )
    found += [_step(progress, step) for step in cause.steps[:_MANY]]
    if len(cause.steps) > _MANY:
        more = RankSet()
        for step in cause.steps[_MANY:]:
            more |= step.ranks
        found.append(MoreWait(ranks=len(more)))
    if cause.kind == MISSING:
        found += _progress(progress, cause)
    return tuple(found)


def _step(progress: CollectiveProgress, step: WaitLayer) -> WaitStep:
    first = step.waits[0]
    name = call(progress, first)
    if len(step.waits) > 1:
        numbers = {wait.entry.number for wait in step.waits}
        name = CallName(
            operation=progress.name(first.entry.operation),
            number=numbers.pop() if len(numbers) == 1 else None,
            group=group_name(progress, first.group, which=False),
            groups=len(step.waits),
        )
    return WaitStep(ranks=str(step.ranks), call=name, others=str(step.waits_for))


def _progress(progress: CollectiveProgress, cause: RootCause) -> list[CallProgress]:
    wait = cause.wait
    if wait is None or wait.is_transfer:
        return []
    found = []
    for rank in list(cause.culprits & progress.known)[:2]:
        track = progress.tracks[wait.group].get(rank)
        group = group_name(progress, wait.group)
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


def _where(progress: CollectiveProgress, rank: int, group: int, number: int) -> Where | None:
    """Return where a rank made a call, by its recorder."""
    track = progress.tracks[group].get(rank)
    for one in (*track.pending, *((track.last,) if track.last is not None else ())) if track is not None else ():
        if one.number == number and one.stack:
            return where_of(innermost_own(progress.snapshot.stack(one.stack)))
    return None


def victims_at(progress: CollectiveProgress, cause: RootCause) -> WaitPlace | None:
    """Return what most of the victims are in."""
    if cause.wait is not None:
        return WaitPlace(call=call(progress, cause.wait))
    if cause.mismatch is not None:
        number, group = cause.mismatch.number, group_name(progress, cause.mismatch.group)
        return WaitPlace(call=CallName(operation="call", number=number, group=group))
    return None


def trait(progress: CollectiveProgress, ranks: RankSet) -> tuple[Fact, ...]:
    """Return what several culprits have in common: one group, or one host."""
    if len(ranks) < 2:
        return ()
    hosts = {rank.host for rank in progress.snapshot.ranks if rank.rank in ranks}
    if len(hosts) == 1 and "" not in hosts and progress.snapshot.spans_hosts:
        return (AllOnHost(ranks=str(ranks), host=hosts.pop()),)
    for row, group in enumerate(progress.snapshot.groups):
        if progress.members[row] == ranks and group.source == "config" and group.description != "default_pg":
            return (WholeGroup(ranks=str(ranks), group=group_name(progress, row)),)
    return ()
