"""Many ranks' recorders, each with tables of its own, into the tables of one snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from breakranks.rankset import RankSet, short_text
from breakranks.snapshot.model import Frame, StackTable
from breakranks.snapshot.recorder_tables import (
    Entry,
    Group,
    Operation,
    Recorder,
    RecorderTable,
    Track,
    Transfer,
    pack_rows,
    unpack_rows,
)

WORLD_NAMES = ("default_pg",)


class RecorderMerger:
    """Adds one rank's recorder after the other. What is equal is kept once."""

    def __init__(self, stacks: StackTable) -> None:
        self.table = RecorderTable()
        self._stacks = stacks
        self._same: dict[tuple[bytes, tuple[int, ...]], bytes] = {}

    def add(
        self,
        recorder: Recorder,
        operations: Sequence[Operation],
        groups: Sequence[Group],
        frames: Sequence[Frame],
        stacks: Sequence[tuple[int, ...]],
    ) -> Recorder:
        """``recorder`` with rows of the snapshot's tables in place of its own."""
        operation_rows = tuple(self.table.operation(one) for one in operations)
        group_rows = [self.table.group(one) for one in groups]
        stack_rows = [self._stacks.add(tuple(frames[i] for i in stack)) for stack in stacks]

        def entry(one: Entry) -> Entry:
            return replace(one, operation=operation_rows[one.operation], stack=stack_rows[one.stack])

        def track(one: Track) -> Track:
            return replace(
                one,
                group=group_rows[one.group],
                history=self._history(one.history, operation_rows),
                pending=tuple(map(entry, one.pending)),
                last=None if one.last is None else entry(one.last),
            )

        def transfer(one: Transfer) -> Transfer:
            return replace(one, group=group_rows[one.group], entry=entry(one.entry))

        return replace(
            recorder,
            tracks=tuple(map(track, recorder.tracks)),
            transfers=tuple(map(transfer, recorder.transfers)),
        )

    def _history(self, history: bytes, rows: tuple[int, ...]) -> bytes:
        """The same history in rows of the snapshot. Equal ones, as most are, are one object."""
        known = self._same.get((history, rows))
        if known is None:
            made = pack_rows(map(rows.__getitem__, unpack_rows(history)))
            known = self._same[history, rows] = self._same.setdefault((made, ()), made)
        return known


def rebuild(
    groups: Sequence[Group], recorders: Mapping[int, Recorder], world: RankSet
) -> tuple[tuple[Group, ...], dict[int, Recorder]]:
    """Members for groups whose dump does not say them, as gloo's never does.

    The world's group has everyone; of the others those are known that recorded something in it. Rows that turn
    out to be one group become one.
    """
    seen: dict[tuple[str, str], list[int]] = {}
    known: dict[tuple[str, str], RankSet] = {}
    for group in groups:
        if group.ranks:
            known[group.name, group.description] = RankSet.parse(group.ranks)
    for rank, recorder in recorders.items():
        for row in {*(track.group for track in recorder.tracks), *(one.group for one in recorder.transfers)}:
            seen.setdefault((groups[row].name, groups[row].description), []).append(rank)
    made = RecorderTable()
    rows = []
    for group in groups:
        key = (group.name, group.description)
        if group.ranks:
            rows.append(made.group(group))
        elif key in known:
            rows.append(made.group(replace(group, ranks=short_text(known[key], None), source="config")))
        elif group.description in WORLD_NAMES and group.name == "0":
            rows.append(made.group(replace(group, ranks=str(world), source="world")))
        else:
            rows.append(made.group(replace(group, ranks=short_text(RankSet(seen.get(key, ())), None), source="seen")))
    return tuple(made.groups), {rank: _moved(recorder, rows) for rank, recorder in recorders.items()}


def _moved(recorder: Recorder, rows: list[int]) -> Recorder:
    return replace(
        recorder,
        tracks=tuple(replace(one, group=rows[one.group]) for one in recorder.tracks),
        transfers=tuple(replace(one, group=rows[one.group]) for one in recorder.transfers),
    )
