"""The sentences: ``all_reduce #239 of mesh_tp``, who waits in it, and through which others."""

from __future__ import annotations

from breakranks.explain import phrases
from breakranks.explain.collectives.progress import CollectiveProgress, PendingCall
from breakranks.explain.collectives.root_causes import MISMATCH, MISSING, STALLED, RootCause, WaitLayer, sides_of
from breakranks.rankset import RankSet, ranks_text, short_text
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.recorder_tables import Entry, Operation

_MANY = 8


def group_name(ledger: CollectiveProgress, row: int, which: bool = True) -> str:
    """``mesh_tp (0-7)``: by its description, and its members where several bear it."""
    group = ledger.group(row)
    name = group.description if group.description not in ("", "undefined") else f"group {group.name}"
    if name == "default_pg":
        return "the world group"
    if group.name.startswith("ranks "):
        return f"the group of {group.name}"  # a dump that names no groups
    alike = sum(1 for other in ledger.snapshot.groups if other.description == group.description)
    members = short_text(ledger.members[row])
    return f"{name} ({members})" if which and members and (alike > 1 or name.startswith("group ")) else name


def call(ledger: CollectiveProgress, wait: PendingCall, which: bool = True) -> str:
    """``all_reduce #239 of mesh_tp (0-7)`` or ``recv from 3``"""
    if wait.is_transfer:
        return f"{'send to' if wait.sends else 'recv from'} {wait.peer}"
    return entry(ledger, wait.group, wait.entry, which)


def calls(ledger: CollectiveProgress, wait: PendingCall) -> str:
    """The same of several groups: ``all_reduce of mesh_tp``."""
    if wait.is_transfer:
        return "send" if wait.sends else "recv"
    return f"{ledger.name(wait.entry.operation)} of {group_name(ledger, wait.group, which=False)}"


def entry(ledger: CollectiveProgress, group: int, one: Entry, which: bool = True) -> str:
    return f"{ledger.name(one.operation)} #{one.number} of {group_name(ledger, group, which)}"


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


def sentence(ledger: CollectiveProgress, cause: RootCause) -> str:
    if cause.kind == MISMATCH:
        return _mismatch(ledger, cause)
    if cause.ring:
        return _ring(ledger, cause)
    if cause.kind == STALLED:
        assert cause.wait is not None
        members = ledger.members[cause.wait.group]
        everyone = f"all {len(members)} members are"
        if len(members) == 1:
            everyone = f"{ranks_text(members)}, its only member, is"
        where = f"{everyone} in {call(ledger, cause.wait)} and it has not completed"
        if cause.culprits != members:
            where = f"all {len(members)} members have entered {call(ledger, cause.wait)}, and "
            where += f"{ranks_text(cause.culprits)} {'has' if len(cause.culprits) == 1 else 'have'} not come out"
        return f"{where}: no rank is missing from it, so look at the network, or at what runs before it on the GPUs"
    return f"{ranks_text(cause.culprits)} {entered(ledger, cause)}{waiting(cause)}"


def entered(ledger: CollectiveProgress, cause: RootCause) -> str:
    """``has not entered all_reduce #239 of mesh_tp``, or that it has no dump."""
    assert cause.wait is not None
    have = "has" if len(cause.culprits) == 1 else "have"
    if cause.wait.is_transfer:
        waiter = cause.steps[0].ranks
        verb = "received what" if cause.wait.sends else "sent what"
        does = "sends it" if cause.wait.sends else "waits for in recv"
        return f"{have} not {verb} {ranks_text(waiter)} {does}"
    if not cause.culprits & ledger.known:
        return f"left no dump, and {have} not been seen in {call(ledger, cause.wait)}"
    lag = behind(ledger, cause)
    return f"{have} not entered {call(ledger, cause.wait)}{lag}"


def behind(ledger: CollectiveProgress, cause: RootCause) -> str:
    """By how many calls of that group the culprit is behind, where it is more than one."""
    wait = cause.wait
    if wait is None or wait.is_transfer:
        return ""
    lags = {wait.entry.number - ledger.reached(wait.group, rank) for rank in cause.culprits & ledger.known}
    if len(lags) != 1 or lags == {1} or not all(rank in ledger.tracks[wait.group] for rank in cause.culprits):
        return ""
    return f" ({lags.pop()} behind)"


def waiting(cause: RootCause) -> str:
    """``; 31 ranks wait for it, 12 of them through 2 other groups``"""
    it = "it" if len(cause.culprits) == 1 else "them"
    victims = cause.victims
    if cause.wait is not None and cause.wait.is_transfer and len(victims) == 1:
        return ""
    text = f"{ranks_text(victims)} wait{'s' if len(victims) == 1 else ''} for {it}"
    if len(victims) > _MANY:
        text = f"{len(victims)} ranks wait for {it}"
    through = RankSet()
    groups = set()
    for step in cause.steps:
        if step.depth > 1:
            through |= step.ranks
            groups |= {wait.group for wait in step.waits}
    if through:
        text += f", {len(through)} of them through {len(groups)} other group{'s' if len(groups) > 1 else ''}"
    return f"; {text}"


def last_call(ledger: CollectiveProgress, ranks: RankSet) -> str:
    """Where the culprit was when it was last heard of."""
    last = newest(ledger, ranks.first)
    if last is None:
        return ". It has made no call that is recorded"
    frame = innermost_own(ledger.snapshot.stack(last[1].stack))
    place = f", from {phrases.place(frame)}" if frame is not None else ""
    return f". Its last call was {entry(ledger, *last)}{place}"


def _mismatch(ledger: CollectiveProgress, cause: RootCause) -> str:
    one = cause.mismatch
    assert one is not None
    operations = [ledger.operation(row) for _, row in one.sides]
    sides = [
        f"{ranks_text(ranks)} called {shape(ledger, row, operations)}"
        for ranks, row in sorted(one.sides, key=lambda side: -len(side[0]))[:4]
    ]
    text = f"call #{one.number} of {group_name(ledger, one.group)} is not the same on all its members: "
    return text + phrases.listed(sides)


def shape(ledger: CollectiveProgress, row: int, among: list[Operation]) -> str:
    """An operation with what tells it from the others: its sizes, its types."""
    one = ledger.operation(row)
    parts = [ledger.name(row)]
    same = [other for other in among if other.name == one.name]
    if one.inputs and len({(other.inputs, other.outputs) for other in same}) > 1:
        parts.append(f"of {one.inputs}" if len({other.inputs for other in same}) > 1 else f"into {one.outputs}")
    elif one.inputs and len({other.name for other in among}) > 1:
        parts.append(f"of {one.inputs}")
    if one.types and len({other.types for other in same}) > 1:
        parts.append(f"in {one.types}")
    return " ".join(parts)


def _ring(ledger: CollectiveProgress, cause: RootCause) -> str:
    head = f"{ranks_text(sides_of(cause))} wait for each other"
    if not all(wait.is_transfer for _, wait in cause.ring):
        head += ", for they entered their groups in different orders or one left a call out"
    sides = [f"{ranks_text(ranks)} in {call(ledger, wait)}" for ranks, wait in cause.ring[:_MANY]]
    more = f" and {len(cause.ring) - _MANY} more" if len(cause.ring) > _MANY else ""
    return f"{head}: {phrases.listed(sides)}{more}"


def proof(ledger: CollectiveProgress, cause: RootCause) -> tuple[str, ...]:
    """The chain from the culprits to the last victim, a line for each kind of wait."""
    lines = []
    if cause.mismatch is not None:
        operations = [ledger.operation(row) for _, row in cause.mismatch.sides]
        for ranks, row in cause.mismatch.sides[:_MANY]:
            place = _place(ledger, ranks.first, cause.mismatch.group, cause.mismatch.number)
            lines.append(f"{ranks_text(ranks)}: {shape(ledger, row, operations)}{place}")
    for ranks, wait in cause.ring[:_MANY]:
        place = _place(ledger, ranks.first, wait.group, wait.entry.number) if not wait.is_transfer else ""
        verb = "is" if len(ranks) == 1 else "are"
        lines.append(f"{ranks_text(ranks)} {verb} in {call(ledger, wait)}{place}, {_for(ranks, wait)}")
    lines += [_step(ledger, step) for step in cause.steps[:_MANY]]
    if len(cause.steps) > _MANY:
        more = RankSet()
        for step in cause.steps[_MANY:]:
            more |= step.ranks
        lines.append(f"and {len(more)} more ranks wait for those")
    if cause.kind == MISSING:
        lines += _progress(ledger, cause)
    return tuple(lines)


def _for(ranks: RankSet, wait: PendingCall) -> str:
    others = wait.others
    if not others:
        return "in which no other member is known to have called anything"
    verb = "which have it behind another call" if wait.is_order else "which have not entered it"
    if len(others) == 1:
        verb = verb.replace("have", "has")
    waits = "waits" if len(ranks) == 1 else "wait"
    return f"{waits} for {ranks_text(others)}" + ("" if wait.is_transfer else f", {verb}")


def _step(ledger: CollectiveProgress, step: WaitLayer) -> str:
    """``ranks 8-12,14-15 wait in all_reduce #239 of mesh_tp (8-15) for rank 13``"""
    verb = "waits" if len(step.ranks) == 1 else "wait"
    first = step.waits[0]
    if len(step.waits) == 1:
        what = call(ledger, first)
    else:
        numbers = {wait.entry.number for wait in step.waits}
        number = f" #{numbers.pop()}" if len(numbers) == 1 else ""
        name = ledger.name(first.entry.operation)
        what = f"{name}{number} of {len(step.waits)} groups {group_name(ledger, first.group, which=False)}"
    ranks = f"rank{'' if len(step.ranks) == 1 else 's'} {short_text(step.ranks, 60)}"
    others = f"rank{'' if len(step.waits_for) == 1 else 's'} {short_text(step.waits_for, 60)}"
    return f"{ranks} {verb} in {what} for {others}"


def _progress(ledger: CollectiveProgress, cause: RootCause) -> list[str]:
    wait = cause.wait
    if wait is None or wait.is_transfer:
        return []
    lines = []
    for rank in list(cause.culprits & ledger.known)[:2]:
        track = ledger.tracks[wait.group].get(rank)
        if track is None:
            lines.append(f"rank {rank} has recorded no call of {group_name(ledger, wait.group)}")
        else:
            lines.append(
                f"rank {rank} has come to #{track.reached} of {group_name(ledger, wait.group)}, "
                f"completed #{track.completed}; the others are in #{wait.entry.number}"
            )
    return lines


def _place(ledger: CollectiveProgress, rank: int, group: int, number: int) -> str:
    track = ledger.tracks[group].get(rank)
    for one in (*track.pending, *((track.last,) if track.last is not None else ())) if track is not None else ():
        if one.number == number and one.stack:
            frame = innermost_own(ledger.snapshot.stack(one.stack))
            return f", {phrases.place(frame)}" if frame is not None else ""
    return ""


def victims_in(ledger: CollectiveProgress, cause: RootCause) -> str:
    """What most of the victims are in."""
    if cause.wait is not None:
        return call(ledger, cause.wait)
    if cause.mismatch is not None:
        return f"call #{cause.mismatch.number} of {group_name(ledger, cause.mismatch.group)}"
    return ""


def trait(ledger: CollectiveProgress, ranks: RankSet) -> str:
    """What several culprits have in common: one group, one host."""
    if len(ranks) < 2:
        return ""
    hosts = {one.host for one in ledger.snapshot.ranks if one.rank in ranks}
    if len(hosts) == 1 and "" not in hosts and ledger.snapshot.remote_ranks:
        return f"{ranks_text(ranks)} are all on host {hosts.pop()}"
    for row, group in enumerate(ledger.snapshot.groups):
        if ledger.members[row] == ranks and group.source == "config" and group.description != "default_pg":
            return f"{ranks_text(ranks)} are the whole of {group_name(ledger, row)}"
    return ""
