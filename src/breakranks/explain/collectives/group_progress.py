"""Which members of each group are at which call: what ``breakranks collectives`` shows, before it is text or JSON."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from breakranks.explain.collectives.collective_progress import CallMismatch, CollectiveProgress
from breakranks.explain.collectives.root_causes import RootCause
from breakranks.explain.collectives.wait_ages import longest
from breakranks.rankset import RankSet
from breakranks.snapshot.recorder_tables import NOT_RECORDED, STARTED, Entry, Track

WAITING, UNDER_WAY, DONE = "waiting", "started", "completed"


class ProgressRow(NamedTuple):
    """Members that are equally far. ``number`` is their newest call, ``waits_in`` the oldest that has not completed (0:
    none), ``awaited`` the next call that others wait in and that these have not entered (0: none). ``stale``: they were
    read before the others and have probably made progress since."""

    ranks: RankSet
    number: int
    completed: int
    operations: tuple[int, ...]  # of ``number``; several where they may differ
    state: str
    awaited: int = 0
    waits_in: int = 0
    waits_operations: tuple[int, ...] = ()
    seconds: float | None = None  # since the newest call was made; the longest of these ranks
    waits_seconds: float | None = None
    stale: bool = False


class GroupProgress(NamedTuple):
    """One group. ``nothing``: members whose recorder has no call of it. ``unseen``: members without a recorder.
    ``waiting`` wait for ``awaited``, of whom ``behind`` have made the call too, but after another pending one.
    ``order`` is lower for more troubled groups."""

    group: int
    members: RankSet
    rows: tuple[ProgressRow, ...]  # the front line first
    nothing: RankSet
    unseen: RankSet
    waiting: RankSet
    awaited: RankSet
    behind: RankSet
    mismatch: CallMismatch | None
    order: tuple[bool, int, int, int, int]

    @property
    def not_entered(self) -> RankSet:
        """The members that have not entered a call that others wait in."""
        found = self.nothing
        for row in self.rows:
            if row.awaited:
                found |= row.ranks
        return found

    @property
    def well(self) -> bool:
        """Whether all members are at the same call and no rank waits for another one."""
        numbers = {row.number for row in self.rows if not row.stale}
        return not (self.waiting or self.mismatch or self.nothing) and len(numbers) < 2


class CallTime(NamedTuple):
    """One number of a group: which members made which call, which have not reached it, and whose ring no longer has
    it."""

    number: int
    calls: tuple[tuple[RankSet, int], ...]
    not_entered: RankSet
    forgotten: RankSet
    differs: bool


class PendingTransfers(NamedTuple):
    """Pending sends or recvs of the same kind. ``answered``: the other end has made its call too; None: not known."""

    ranks: RankSet
    sends: bool
    peer: int
    group: int
    calls: int
    answered: bool | None
    seconds: float | None


def standings(progress: CollectiveProgress, causes: Iterable[RootCause] = ()) -> list[GroupProgress]:
    """Return every group in which a collective was recorded, the most troubled first."""
    places: dict[int, int] = {}
    for place, group in enumerate(_nearest_first(causes)):
        places.setdefault(group, place)
    mismatches = {mismatch.group: mismatch for mismatch in progress.mismatches}
    found = [
        _progress_of(progress, group, mismatches.get(group), places.get(group, 1 << 30))
        for group, tracks in enumerate(progress.tracks)
        if tracks
    ]
    return sorted(found, key=lambda group: group.order)


def _nearest_first(causes: Iterable[RootCause]) -> Iterator[int]:
    """Yield the groups of each cause: the group of the cause, those that wait for the culprits, those that wait for
    these."""
    for cause in causes:
        if cause.mismatch is not None:
            yield cause.mismatch.group
        waits = [*([cause.wait] if cause.wait is not None else []), *(wait for _, wait in cause.ring)]
        for step in sorted(cause.steps, key=lambda step: step.depth):
            waits += step.waits
        yield from (wait.group for wait in waits if not wait.is_transfer)


def _progress_of(progress: CollectiveProgress, group: int, mismatch: CallMismatch | None, place: int) -> GroupProgress:
    tracks = progress.tracks[group]
    members = progress.members[group] | RankSet(tracks)
    nothing = (members & progress.known) - RankSet(tracks) - progress.stale
    waiting, awaited, behind = [], RankSet(), RankSet()
    for rank in tracks:
        for wait in progress.waits.get(rank, ()):
            if wait.group == group and not wait.is_transfer and wait.others:
                waiting.append(rank)
                awaited |= wait.others
                behind |= wait.elsewhere if wait.is_order else RankSet()
    rows = _rows(progress, tracks)
    numbers = {row.number for row in rows if not row.stale}
    trouble = 0 if mismatch else 1 if waiting else 2 if nothing or len(numbers) > 1 else 3
    order = (trouble > 1, place, trouble, -len(waiting), group)
    unseen = members - progress.known
    return GroupProgress(
        group=group,
        members=members,
        rows=rows,
        nothing=nothing,
        unseen=unseen,
        waiting=RankSet(waiting),
        awaited=awaited,
        behind=behind,
        mismatch=mismatch,
        order=order,
    )


def _rows(progress: CollectiveProgress, tracks: dict[int, Track]) -> tuple[ProgressRow, ...]:
    stale = progress.stale
    waited = sorted({track.pending[0].number for rank, track in tracks.items() if track.pending and rank not in stale})
    found: dict[object, list[int]] = {}
    for rank, track in tracks.items():
        head = track.pending[0] if track.pending else None
        shown = head.number if head is not None else track.reached
        what = progress.what_counts(track.row(shown))
        key = (
            track.reached,
            track.completed,
            what,
            head.number if head else 0,
            head.state if head else "",
            rank in stale,
        )
        found.setdefault(key, []).append(rank)
    rows = []
    for ranks in found.values():
        mine = [tracks[rank] for rank in ranks]
        number, pending, old = mine[0].reached, mine[0].pending, ranks[0] in stale
        after = bisect_right(waited, number)
        heads = [(rank, track.pending[0]) for rank, track in zip(ranks, mine, strict=True) if track.pending]
        newest = [(rank, track.last) for rank, track in zip(ranks, mine, strict=True) if track.last is not None]
        rows.append(
            ProgressRow(
                ranks=RankSet(ranks),
                number=number,
                completed=mine[0].completed,
                operations=_distinct(track.row(number) for track in mine),
                state=DONE if not pending else UNDER_WAY if pending[0].state == STARTED else WAITING,
                awaited=waited[after] if after < len(waited) and not old else 0,
                waits_in=pending[0].number if pending else 0,
                waits_operations=_distinct(track.row(pending[0].number) for track in mine) if pending else (),
                seconds=longest(progress, newest),
                waits_seconds=longest(progress, heads),
                stale=old,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.number, -row.completed, row.ranks.first)))


def _distinct(rows: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(rows))


def moments(progress: CollectiveProgress, group: GroupProgress, count: int) -> list[CallTime]:
    """Return the last numbers of a group, newest last, and the one at which its members differ, wherever it is."""
    tracks = progress.tracks[group.group]
    newest = max(track.reached for track in tracks.values())
    oldest = max(newest - count + 1, min(track.first for track in tracks.values()))
    numbers = list(range(oldest, newest + 1))
    if group.mismatch is not None and group.mismatch.number < oldest:
        numbers.insert(0, group.mismatch.number)
    return [_moment(progress, tracks, group.members, number) for number in numbers]


def _moment(progress: CollectiveProgress, tracks: dict[int, Track], members: RankSet, number: int) -> CallTime:
    calls: dict[int, list[int]] = {}
    forgotten = []
    behind = []
    for rank, track in tracks.items():
        row = track.row(number)
        if track.reached < number:
            behind.append(rank)
        elif row == NOT_RECORDED:
            forgotten.append(rank)
        else:
            calls.setdefault(row, []).append(rank)
    not_entered = RankSet(behind) | ((members & progress.known) - RankSet(tracks))
    ordered = sorted(((RankSet(ranks), row) for row, ranks in calls.items()), key=lambda call: call[0].first)
    differs = len({progress.what_counts(row) for row in calls}) > 1
    return CallTime(
        number=number, calls=tuple(ordered), not_entered=not_entered, forgotten=RankSet(forgotten), differs=differs
    )


def transfers(progress: CollectiveProgress, ranks: RankSet | None = None) -> list[PendingTransfers]:
    """Return the sends and recvs that have not completed, the unanswered ones first."""
    unanswered = {
        (rank, wait.group, wait.peer, wait.sends): bool(wait.absent)
        for rank, waits in progress.waits.items()
        for wait in waits
        if wait.is_transfer and (wait.absent or wait.unknown)
    }
    found: dict[tuple[bool, int, int, bool | None], list[tuple[int, Entry]]] = {}
    for rank, recorder in progress.recorders.items():
        for transfer in recorder.transfers:
            if ranks is not None and rank not in ranks and transfer.peer not in ranks:
                continue
            lacks = unanswered.get((rank, transfer.group, transfer.peer, transfer.sends))
            unknown = transfer.peer < 0 or lacks is False or transfer.peer in progress.stale or rank in progress.stale
            answered = None if unknown else lacks is None
            found.setdefault((transfer.sends, transfer.peer, transfer.group, answered), []).append(
                (rank, transfer.entry)
            )
    made = [
        PendingTransfers(
            ranks=RankSet(rank for rank, _ in calls),
            sends=sends,
            peer=peer,
            group=group,
            calls=len(calls),
            answered=answered,
            seconds=longest(progress, calls),
        )
        for (sends, peer, group, answered), calls in found.items()
    ]
    return sorted(
        made,
        key=lambda transfer: (
            transfer.answered is True,
            transfer.answered is None,
            transfer.ranks.first,
            transfer.peer,
        ),
    )
