"""Merges the recorders of many ranks, each with its own tables, into the tables of one snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
    """Adds one recorder after the other. Equal entries are stored once."""

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
        """Return ``recorder`` with rows of the merged tables."""
        operation_rows = tuple(self.table.operation(operation) for operation in operations)
        group_rows = [self.table.group(group) for group in groups]
        stack_rows = [self._stacks.add(tuple(frames[i] for i in stack)) for stack in stacks]

        def entry(entry: Entry) -> Entry:
            return entry._replace(operation=operation_rows[entry.operation], stack=stack_rows[entry.stack])

        def track(track: Track) -> Track:
            return track._replace(
                group=group_rows[track.group],
                history=self._history(track.history, operation_rows),
                pending=tuple(map(entry, track.pending)),
                last=None if track.last is None else entry(track.last),
            )

        def transfer(transfer: Transfer) -> Transfer:
            return transfer._replace(group=group_rows[transfer.group], entry=entry(transfer.entry))

        return replace(
            recorder,
            tracks=tuple(map(track, recorder.tracks)),
            transfers=tuple(map(transfer, recorder.transfers)),
        )

    def _history(self, history: bytes, rows: tuple[int, ...]) -> bytes:
        """Return the history with rows of the merged tables. Equal histories, as most are, share one object."""
        known = self._same.get((history, rows))
        if known is None:
            made = pack_rows(map(rows.__getitem__, unpack_rows(history)))
            known = self._same[history, rows] = self._same.setdefault((made, ()), made)
        return known


def rebuild(
    groups: Sequence[Group], recorders: Mapping[int, Recorder], world: RankSet
) -> tuple[tuple[Group, ...], dict[int, Recorder]]:
    """Return the groups with members where the dump does not contain them, as gloo's never does.

    The world group has all ranks. Of the others, the members are those that recorded a call in it. Rows that turn out
    to be one group are merged.
    """
    seen: dict[tuple[str, str], list[int]] = {}
    known: dict[tuple[str, str], RankSet] = {}
    for group in groups:
        if group.ranks:
            known[group.name, group.description] = RankSet.parse(group.ranks)
    for rank, recorder in recorders.items():
        for row in {*(track.group for track in recorder.tracks), *(transfer.group for transfer in recorder.transfers)}:
            seen.setdefault((groups[row].name, groups[row].description), []).append(rank)
    made = RecorderTable()
    rows = []
    for group in groups:
        key = (group.name, group.description)
        if group.ranks:
            rows.append(made.group(group))
        elif key in known:
            rows.append(made.group(group._replace(ranks=short_text(known[key], None), source="config")))
        elif group.description in WORLD_NAMES and group.name == "0":
            rows.append(made.group(group._replace(ranks=str(world), source="world")))
        else:
            rows.append(made.group(group._replace(ranks=short_text(RankSet(seen.get(key, ())), None), source="seen")))
    if rows == list(range(len(rows))):
        return tuple(made.groups), dict(recorders)
    return tuple(made.groups), {rank: _moved(recorder, rows) for rank, recorder in recorders.items()}


def _moved(recorder: Recorder, rows: list[int]) -> Recorder:
    return replace(
        recorder,
        tracks=tuple(track._replace(group=rows[track.group]) for track in recorder.tracks),
        transfers=tuple(transfer._replace(group=rows[transfer.group]) for transfer in recorder.transfers),
    )
