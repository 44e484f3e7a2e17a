"""Every rank's way through every group, side by side; and from it, who waits for whom.

A rank's calls in one group bear numbers that are the same for the same call on every member. So a rank whose call
number 239 is pending waits for each member that has not reached number 239, however the rings have wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from breakranks.explain.values import CallName
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

# What must be the same on all members, besides name and types. The others may differ from rank to rank.
_INPUTS_EQUAL = ("all_reduce", "allreduce", "broadcast", "reduce_scatter", "_reduce_scatter_base", "reduce")
_OUTPUTS_EQUAL = ("all_gather", "_all_gather_base", "allgather", "all_gather_into_tensor")
_ROWS_DIFFER = ("all_to_all", "alltoall", "alltoall_base", "ALLTOALL_BASE", "all_to_all_single", "all_to_allv")
_TYPES_DIFFER = ("gather", "scatter")
# Nobody gets out of these before everybody is in.
_SYNCHRONISE = frozenset(("barrier", *_INPUTS_EQUAL[:2], *_INPUTS_EQUAL[3:5], *_OUTPUTS_EQUAL, *_ROWS_DIFFER))
_FRIENDLY = {"_all_gather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter", "allreduce": "all_reduce",
             "allgather": "all_gather", "alltoall_base": "all_to_all", "alltoall": "all_to_all",
             "ALLTOALL_BASE": "all_to_all", "all_to_all_single": "all_to_all"}  # fmt: skip


class PendingCall(NamedTuple):
    """A call that has not completed, and the members that are not in it.

    ``absent`` are members that were seen not to have come; ``unknown`` those of which nothing is known;
    ``elsewhere`` those that have called it too, but behind another call that is pending (a weaker reason: calls of
    different groups may well run side by side). ``peer`` is the other end of a send (``sends``) or recv, -1 in a
    collective.
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
        """Those that it waits for, by the best evidence that there is."""
        return self.absent or self.unknown or self.elsewhere

    @property
    def is_order(self) -> bool:
        """Whether it waits only because others have it behind another call."""
        return bool(self.elsewhere) and not self.absent and not self.unknown


class CallMismatch(NamedTuple):
    """The first number of a group at which members called different things."""

    group: int
    number: int
    sides: tuple[tuple[RankSet, int], ...]  # the ranks, and the row of the operation that they called

    @property
    def ranks(self) -> RankSet:
        found = RankSet()
        for ranks, _ in self.sides:
            found |= ranks
        return found


class CollectiveProgress:
    """All recorders of a snapshot, prepared. ``waits`` has every rank's pending calls, oldest first."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.recorders = {rank.rank: rank.recorder for rank in snapshot.ranks if rank.recorder is not None}
        self.known = RankSet(self.recorders)
        self.missing = RankSet.parse(",".join(one.ranks for one in snapshot.missing)) - self.known
        self.members = [members_of(group) for group in snapshot.groups]
        self.tracks: list[dict[int, Track]] = [{} for _ in snapshot.groups]
        for rank, recorder in self.recorders.items():
            for track in recorder.tracks:
                self.tracks[track.group][rank] = track
        self._absent: dict[tuple[int, int], RankSet] = {}
        self._elsewhere: dict[tuple[int, int], RankSet] = {}
        self._alike = [_what_counts(one) for one in snapshot.operations]
        self._together = [set(one.name.split("+")) <= _SYNCHRONISE for one in snapshot.operations]
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
        """What a person calls the operation."""
        name = self.operation(row).name
        return "+".join(_FRIENDLY.get(part, part) for part in name.split("+")[:3])

    def what_counts(self, row: int) -> tuple[str, ...]:
        """The part of an operation that must be equal on all members: equal for calls that are the same."""
        return self._alike[row]

    def reached(self, group: int, rank: int) -> int:
        """The number of the newest call of this rank in this group; 0: none that is known of."""
        track = self.tracks[group].get(rank)
        return track.reached if track is not None else 0

    def absent(self, group: int, number: int) -> RankSet:
        """The members that are known not to have called this number."""
        key = (group, number)
        found = self._absent.get(key)
        if found is None:
            tracks = self.tracks[group]
            there = RankSet(rank for rank, track in tracks.items() if track.reached >= number)
            found = self._absent[key] = (self.members[group] & self.known) - there - self.stale
        return found

    def unclear(self, wait: PendingCall) -> bool:
        """Whether members that may have come since are not known to be in it."""
        return any(self.reached(wait.group, rank) < wait.entry.number for rank in self.members[wait.group] & self.stale)

    def _stale(self) -> RankSet:
        """Ranks whose dump is older than what others saw completed: what they had not done then says nothing.

        Dumps of a job that runs on, made one after the other, look so; dumps of one that stands do not.
        """
        found: list[int] = []
        for group, tracks in enumerate(self.tracks):
            if not tracks:
                continue
            ahead = max(tracks.values(), key=lambda track: track.completed)
            for rank in self.members[group] & self.known:
                track = tracks.get(rank)
                if track is None and self.recorders[rank].wrapped:
                    continue  # its ring may have forgotten this group
                reached = track.reached if track is not None else 0
                if reached < ahead.completed and any(
                    self._together[ahead.row(number)]
                    for number in range(max(reached + 1, ahead.first), ahead.completed + 1)
                    if ahead.row(number)
                ):
                    found.append(rank)
        return RankSet(found)

    def head(self, rank: int) -> PendingCall:
        """The pending call that holds a rank up: the oldest for which somebody is missing, or that differs."""
        return self._first(self.waits[rank])

    def worked_with(self, ranks: RankSet) -> CallName | None:
        """A completed call that all of these must have been in; None where there is none."""
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
        """Who waits for whom, over all groups and pairs: every rank that has a pending call.

        Only its oldest counts for which somebody is missing. A host may run far ahead of its device, and what it has
        called since waits for that one.
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
            # Everybody that is known of is in it: if it does not end, there are others, of which there is no dump.
            unknown = self.missing
        return PendingCall(group=group, entry=entry, absent=absent, unknown=unknown)

    def _answer_behind(self, rank: int, wait: PendingCall, heads: dict[int, PendingCall]) -> RankSet:
        """Whether the other end of a send or recv has called its part too, but behind another call."""
        head = heads.get(wait.peer)
        if head is None:
            return RankSet()
        answers = [t for t in self.recorders[wait.peer].transfers if t.peer == rank and t.sends != wait.sends]
        first = min((t.entry.record for t in answers), default=-1)
        return RankSet([wait.peer]) if head.entry.record < first else RankSet()

    def _behind(self, rank: int, wait: PendingCall, heads: dict[int, PendingCall]) -> PendingCall:
        """Where all have called it and it is not done: who has it behind another call?"""
        if wait.absent or wait.unknown:
            return wait
        if wait.is_transfer:
            return wait._replace(elsewhere=self._answer_behind(rank, wait, heads))
        if self._differs(wait):
            return wait
        elsewhere = self._all_behind(wait, heads)
        return wait._replace(elsewhere=elsewhere - RankSet([rank])) if elsewhere else wait

    def _all_behind(self, wait: PendingCall, heads: dict[int, PendingCall]) -> RankSet:
        """Worked out once for each call: all members may be in it, and ask."""
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
        """The record of this call on another rank; before all if it is not pending there."""
        for entry in self.tracks[wait.group][rank].pending:
            if entry.number == wait.entry.number:
                return entry.record
        return -1

    def _differs(self, wait: PendingCall) -> bool:
        return not wait.is_transfer and any(
            one.group == wait.group and one.number <= wait.entry.number for one in self.mismatches
        )

    def _transfers(self, rank: int) -> Iterator[PendingCall]:
        """Sends without a recv at the other end, and recvs without a send: the first of each pair."""
        counts: dict[tuple[int, int, bool], int] = {}
        for one in self.recorders[rank].transfers:
            if one.peer < 0:
                continue
            key = (one.group, one.peer, one.sends)
            counts[key] = counts.get(key, 0) + 1
            other = self.recorders.get(one.peer)
            if one.peer in self.stale:
                continue
            if other is None:
                yield PendingCall(
                    group=one.group,
                    entry=one.entry,
                    absent=RankSet(),
                    unknown=RankSet([one.peer]),
                    elsewhere=RankSet(),
                    peer=one.peer,
                    sends=one.sends,
                )
                continue
            answers = sum(
                1 for t in other.transfers if t.peer == rank and t.sends != one.sends and t.group == one.group
            )
            absent = RankSet([one.peer]) if answers < counts[key] else RankSet()
            yield PendingCall(
                group=one.group,
                entry=one.entry,
                absent=absent,
                unknown=RankSet(),
                elsewhere=RankSet(),
                peer=one.peer,
                sends=one.sends,
            )

    def _mismatches(self) -> Iterator[CallMismatch]:
        for group, tracks in enumerate(self.tracks):
            pending = [track.pending[0].number for track in tracks.values() if track.pending]
            if len(tracks) < 2 or not pending:
                continue
            # What all went through cannot be why they stand.
            found = self._first_difference(group, tracks, min(track.completed for track in tracks.values()) + 1)
            if found is not None and any(
                track.pending and track.pending[-1].number >= found.number for track in tracks.values()
            ):
                yield found

    def _first_difference(self, group: int, tracks: dict[int, Track], start: int) -> CallMismatch | None:
        """Histories are compared as bytes, and looked into only where those differ."""
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

    def _parts(self, one: Track, other: Track, start: int) -> int | None:
        """The first number from ``start`` on at which two histories differ in something that counts."""
        first, last = max(one.first, other.first, start), min(one.reached, other.reached)
        mine, its = slice_of(one, first, last), slice_of(other, first, last)
        if mine == its:
            return None
        for offset, (a, b) in enumerate(zip(unpack_rows(mine), unpack_rows(its), strict=False)):
            if a != b and a and b and self._alike[a] != self._alike[b]:
                return first + offset
        return None


def _what_counts(one: Operation) -> tuple[str, ...]:
    """What must be equal on all members for a call to be the same."""
    parts = set(one.name.split("+"))
    inputs = one.inputs if parts <= set(_INPUTS_EQUAL) else ""
    outputs = one.outputs if parts <= set(_OUTPUTS_EQUAL) else ""
    types = "" if parts & set(_TYPES_DIFFER) else one.types
    if parts <= set(_ROWS_DIFFER):
        inputs, outputs = _width(one.inputs), _width(one.outputs)
    return (one.name, inputs, outputs, types)


def _width(sizes: str) -> str:
    """A tensor's sizes without its rows: how many each rank sends to each is its own affair."""
    return sizes.partition(",")[2] if sizes.count("[") == 1 else ""
