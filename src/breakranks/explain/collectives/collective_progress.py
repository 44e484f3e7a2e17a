"""The calls of every rank in every group, and which rank waits for which.

The calls of a group have numbers, and the same call has the same number on every member. So a rank whose call number
239 is pending waits for each member that has not reached number 239, even if the rings have wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from breakranks.explain.finding_parts import CallName
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.recorder_tables import (
    NOT_RECORDED,
    Entry,
    Group,
    Operation,
    Track,
    members_of,
    slice_of,
    unpack_rows,
)

# What must be the same on all members besides name and types. The other sizes may differ between ranks.
_INPUTS_EQUAL = ("all_reduce", "allreduce", "broadcast", "reduce_scatter", "_reduce_scatter_base", "reduce")
_OUTPUTS_EQUAL = ("all_gather", "_all_gather_base", "allgather", "all_gather_into_tensor")
_ROWS_DIFFER = ("all_to_all", "alltoall", "alltoall_base", "ALLTOALL_BASE", "all_to_all_single", "all_to_allv")
_TYPES_DIFFER = ("gather", "scatter")
# No rank returns from these before all ranks have entered.
_SYNCHRONISE = frozenset(("barrier", *_INPUTS_EQUAL[:2], *_INPUTS_EQUAL[3:5], *_OUTPUTS_EQUAL, *_ROWS_DIFFER))
_FRIENDLY = {"_all_gather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter", "allreduce": "all_reduce",
             "allgather": "all_gather", "alltoall_base": "all_to_all", "alltoall": "all_to_all",
             "ALLTOALL_BASE": "all_to_all", "all_to_all_single": "all_to_all"}  # fmt: skip


class PendingCall(NamedTuple):
    """A call that has not completed, and the members that are not in it.

    ``absent`` members are known not to have entered it; of ``unknown`` ones nothing is known; ``elsewhere`` ones have
    made the call too, but behind another pending call. That is a weaker reason, because calls of different groups may
    run in parallel. ``peer`` is the other end of a send (``sends``) or recv, -1 in a collective.
    """

    group: int
    entry: Entry
    absent: RankSet
    unknown: RankSet = RankSet()
    elsewhere: RankSet = RankSet()
    peer: int = -1
    sends: bool = False

    @property
    def is_transfer(self) -> bool:
        return self.peer >= 0

    @property
    def others(self) -> RankSet:
        """The ranks that it waits for, by the best available evidence."""
        return self.absent or self.unknown or self.elsewhere

    @property
    def is_order(self) -> bool:
        """Whether it waits only because others have made the call behind another one."""
        return bool(self.elsewhere) and not self.absent and not self.unknown


class CallMismatch(NamedTuple):
    """The first number of a group at which members made different calls."""

    group: int
    number: int
    sides: tuple[tuple[RankSet, int], ...]  # the ranks, and the row of their operation

    @property
    def ranks(self) -> RankSet:
        found = RankSet()
        for ranks, _ in self.sides:
            found |= ranks
        return found


class CollectiveProgress:
    """All recorders of a snapshot, prepared. ``waits`` contains every rank's pending calls, oldest first."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.recorders = {rank.rank: rank.recorder for rank in snapshot.ranks if rank.recorder is not None}
        self.known = RankSet(self.recorders)
        self.missing = RankSet.parse(",".join(missing.ranks for missing in snapshot.missing)) - self.known
        self.members = [members_of(group) for group in snapshot.groups]
        self.tracks: list[dict[int, Track]] = [{} for _ in snapshot.groups]
        for rank, recorder in self.recorders.items():
            for track in recorder.tracks:
                self.tracks[track.group][rank] = track
        self._absent: dict[tuple[int, int], RankSet] = {}
        self._elsewhere: dict[tuple[int, int], RankSet] = {}
        self._alike = [_what_counts(operation) for operation in snapshot.operations]
        self._together = [set(operation.name.split("+")) <= _SYNCHRONISE for operation in snapshot.operations]
        self.stale = self._stale()
        self.mismatches = tuple(self._mismatches())
        self.waits = self._waits()

    def __bool__(self) -> bool:
        return bool(self.recorders)

    def group(self, row: int) -> Group:
        return self.snapshot.groups[row]

    def operation(self, row: int) -> Operation:
        return self.snapshot.operations[row]

    def name(self, row: int) -> str:
        """Return the name of an operation as users know it."""
        name = self.operation(row).name
        return "+".join(_FRIENDLY.get(part, part) for part in name.split("+")[:3])

    def what_counts(self, row: int) -> tuple[str, ...]:
        """Return the part of an operation that must be equal on all members."""
        return self._alike[row]

    def reached(self, group: int, rank: int) -> int:
        """Return the number of the newest call of this rank in this group, or 0 if none is known."""
        track = self.tracks[group].get(rank)
        return track.reached if track is not None else 0

    def absent(self, group: int, number: int) -> RankSet:
        """Return the members that are known not to have made the call with this number."""
        key = (group, number)
        found = self._absent.get(key)
        if found is None:
            tracks = self.tracks[group]
            there = RankSet(rank for rank, track in tracks.items() if track.reached >= number)
            found = self._absent[key] = (self.members[group] & self.known) - there - self.stale
        return found

    def unclear(self, wait: PendingCall) -> bool:
        """Whether stale members that had not entered the call may be in it by now."""
        return any(self.reached(wait.group, rank) < wait.entry.number for rank in self.members[wait.group] & self.stale)

    def _stale(self) -> RankSet:
        """Return the ranks whose dump is older than a call that others saw completed: their missing calls mean nothing.

        Dumps of a running job that are written one after the other look like that; dumps of a hanging job do not.
        """
        found: list[int] = []
        for group, tracks in enumerate(self.tracks):
            if not tracks:
                continue
            ahead = max(tracks.values(), key=lambda track: track.completed)
            for rank in self.members[group] & self.known:
                track = tracks.get(rank)
                if track is None and self.recorders[rank].wrapped:
                    continue  # its ring may no longer contain this group
                reached = track.reached if track is not None else 0
                if reached < ahead.completed and any(
                    self._together[ahead.row(number)]
                    for number in range(max(reached + 1, ahead.first), ahead.completed + 1)
                    if ahead.row(number)
                ):
                    found.append(rank)
        return RankSet(found)

    def head(self, rank: int) -> PendingCall:
        """Return the pending call that blocks a rank: the oldest in which a rank is missing, or that differs."""
        return self._first(self.waits[rank])

    def worked_with(self, ranks: RankSet) -> CallName | None:
        """Return a completed call that all of these ranks must have been in, or None."""
        for group, tracks in enumerate(self.tracks):
            if not ranks <= self.members[group]:
                continue
            for track in tracks.values():
                for number in range(track.completed, track.first - 1, -1):
                    row = track.row(number)
                    if row and self._together[row]:
                        return CallName(operation=self.name(row), number=number)
        return None

    def edges(self) -> dict[int, RankSet]:
        """Return the ranks that each rank with a pending call waits for, over all groups and pairs.

        Only its oldest call in which a rank is missing counts. A host may run far ahead of its device, and its later
        calls wait for that one.
        """
        return {rank: self.head(rank).others - RankSet([rank]) for rank in self.waits}

    def _waits(self) -> dict[int, list[PendingCall]]:
        found: dict[int, list[PendingCall]] = {}
        for rank, recorder in self.recorders.items():
            if rank in self.stale:
                continue
            waits = [self._wait(track.group, track.pending[0]) for track in recorder.tracks if track.pending]
            waits += self._transfers(rank)
            if waits:
                found[rank] = sorted(waits, key=lambda wait: wait.entry.record)
        heads = {rank: self._first(waits) for rank, waits in found.items()}
        return {rank: [self._behind(rank, waits[0], heads), *waits[1:]] for rank, waits in found.items()}

    def _first(self, waits: list[PendingCall]) -> PendingCall:
        return next((wait for wait in waits if wait.others or self._differs(wait)), waits[0])

    def _wait(self, group: int, entry: Entry) -> PendingCall:
        absent = self.absent(group, entry.number)
        unknown = self.members[group] - self.known
        if not absent and not unknown and self.group(group).source == "seen" and not self.members[group] & self.stale:
            # All known members are in it: if it does not end, there are others, without a dump.
            unknown = self.missing
        return PendingCall(group=group, entry=entry, absent=absent, unknown=unknown)

    def _answer_behind(self, rank: int, wait: PendingCall, heads: dict[int, PendingCall]) -> RankSet:
        """Return the other end of a send or recv if it has made its call behind another pending call."""
        head = heads.get(wait.peer)
        if head is None:
            return RankSet()
        answers = [t for t in self.recorders[wait.peer].transfers if t.peer == rank and t.sends != wait.sends]
        first = min((t.entry.record for t in answers), default=-1)
        return RankSet([wait.peer]) if head.entry.record < first else RankSet()

    def _behind(self, rank: int, wait: PendingCall, heads: dict[int, PendingCall]) -> PendingCall:
        """Return the wait with its ``elsewhere``: the members that have made the call behind another pending one, where
        all have made it and it has not completed."""
        if wait.absent or wait.unknown:
            return wait
        if wait.is_transfer:
            return wait._replace(elsewhere=self._answer_behind(rank, wait, heads))
        if self._differs(wait):
            return wait
        elsewhere = self._all_behind(wait, heads)
        return wait._replace(elsewhere=elsewhere - RankSet([rank])) if elsewhere else wait

    def _all_behind(self, wait: PendingCall, heads: dict[int, PendingCall]) -> RankSet:
        """Return the ``elsewhere`` of a call. It is computed once, because all members may be in the call."""
        key = (wait.group, wait.entry.number)
        known = self._elsewhere.get(key)
        if known is not None:
            return known
        tracks = self.tracks[wait.group]
        elsewhere = []
        for other in self.members[wait.group]:
            head = heads.get(other)
            if head is None or (head.group == wait.group and not head.is_transfer):
                continue
            if tracks[other].completed < wait.entry.number and head.entry.record < self._record(other, wait):
                elsewhere.append(other)
        self._elsewhere[key] = RankSet(elsewhere)
        return self._elsewhere[key]

    def _record(self, rank: int, wait: PendingCall) -> int:
        """Return the record number of this call on another rank; lower than all if it is not pending there."""
        for entry in self.tracks[wait.group][rank].pending:
            if entry.number == wait.entry.number:
                return entry.record
        return -1

    def _differs(self, wait: PendingCall) -> bool:
        return not wait.is_transfer and any(
            mismatch.group == wait.group and mismatch.number <= wait.entry.number for mismatch in self.mismatches
        )

    def _transfers(self, rank: int) -> Iterator[PendingCall]:
        """Yield sends without a recv at the other end, and recvs without a send: the first of each pair."""
        counts: dict[tuple[int, int, bool], int] = {}
        for transfer in self.recorders[rank].transfers:
            if transfer.peer < 0:
                continue
            key = (transfer.group, transfer.peer, transfer.sends)
            counts[key] = counts.get(key, 0) + 1
            other = self.recorders.get(transfer.peer)
            if transfer.peer in self.stale:
                continue
            if other is None:
                yield PendingCall(
                    group=transfer.group,
                    entry=transfer.entry,
                    absent=RankSet(),
                    unknown=RankSet([transfer.peer]),
                    elsewhere=RankSet(),
                    peer=transfer.peer,
                    sends=transfer.sends,
                )
                continue
            answers = sum(
                1 for t in other.transfers if t.peer == rank and t.sends != transfer.sends and t.group == transfer.group
            )
            absent = RankSet([transfer.peer]) if answers < counts[key] else RankSet()
            yield PendingCall(
                group=transfer.group,
                entry=transfer.entry,
                absent=absent,
                unknown=RankSet(),
                elsewhere=RankSet(),
                peer=transfer.peer,
                sends=transfer.sends,
            )

    def _mismatches(self) -> Iterator[CallMismatch]:
        for group, tracks in enumerate(self.tracks):
            pending = [track.pending[0].number for track in tracks.values() if track.pending]
            if len(tracks) < 2 or not pending:
                continue
            # A call that all ranks have completed cannot be the cause.
            found = self._first_difference(group, tracks, min(track.completed for track in tracks.values()) + 1)
            if found is not None and any(
                track.pending and track.pending[-1].number >= found.number for track in tracks.values()
            ):
                yield found

    def _first_difference(self, group: int, tracks: dict[int, Track], start: int) -> CallMismatch | None:
        """Return the first difference between the histories of a group. They are compared as bytes first."""
        kinds: dict[tuple[int, bytes], list[int]] = {}
        for rank, track in tracks.items():
            kinds.setdefault((track.first, track.history), []).append(rank)
        if len(kinds) < 2:
            return None
        reference = tracks[max(kinds.values(), key=len)[0]]
        first: int | None = None
        for ranks in kinds.values():
            number = self._parts(reference, tracks[ranks[0]], start)
            if number is not None and (first is None or number < first):
                first = number
        if first is None:
            return None
        sides: dict[object, tuple[int, list[int]]] = {}
        for rank, track in tracks.items():
            row = track.row(first)
            if row != NOT_RECORDED:
                sides.setdefault(self._alike[row], (row, []))[1].append(rank)
        ordered = sorted(((RankSet(ranks), row) for row, ranks in sides.values()), key=lambda side: side[0].first)
        return CallMismatch(group, first, tuple(ordered)) if len(ordered) > 1 else None

    def _parts(self, track: Track, other: Track, start: int) -> int | None:
        """Return the first number from ``start`` on at which two histories differ in a part that counts."""
        first, last = max(track.first, other.first, start), min(track.reached, other.reached)
        mine, its = slice_of(track, first, last), slice_of(other, first, last)
        if mine == its:
            return None
        for offset, (a, b) in enumerate(zip(unpack_rows(mine), unpack_rows(its), strict=False)):
            if a != b and a and b and self._alike[a] != self._alike[b]:
                return first + offset
        return None


def _what_counts(operation: Operation) -> tuple[str, ...]:
    """Return what must be equal on all members for a call to be the same."""
    parts = set(operation.name.split("+"))
    inputs = operation.inputs if parts <= set(_INPUTS_EQUAL) else ""
    outputs = operation.outputs if parts <= set(_OUTPUTS_EQUAL) else ""
    types = "" if parts & set(_TYPES_DIFFER) else operation.types
    if parts <= set(_ROWS_DIFFER):
        inputs, outputs = _width(operation.inputs), _width(operation.outputs)
    return (operation.name, inputs, outputs, types)


def _width(sizes: str) -> str:
    """The sizes of a tensor, as torch writes them, without its rows: their number may differ between ranks."""
    return sizes.partition(",")[2] if sizes.count("[") == 1 else ""
