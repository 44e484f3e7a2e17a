"""What torch's flight recorder reports of each rank: which collective of which group, and its state.

Operations and groups are kept once, in tables of the snapshot. A rank's history in a group is a row of numbers. Ranks
that did the same have the same bytes, so a thousand histories are compared as bytes.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from breakranks.rankset import RankSet

SCHEDULED, STARTED, COMPLETED = "scheduled", "started", "completed"
NOT_RECORDED = 0  # the row of an operation of which the ring buffer has no record
ROW_BYTES = 4  # of a row in a history, least significant first


class Operation(NamedTuple):
    """What was called: equal on all members of a correct job. Sizes and types are as the recorder writes them."""

    name: str
    inputs: str = ""
    outputs: str = ""
    types: str = ""


class Group(NamedTuple):
    """A process group. ``ranks`` are its members, folded, as far as known; ``source`` says from where: ``config``
    (the recorder or the process said so), ``world``, or ``seen`` (rebuilt from who recorded something in it: there
    may be more members). ``unnamed``: the dump names no groups, and ``name`` is made of the members."""

    name: str
    description: str = ""
    ranks: str = ""
    source: str = "config"
    backend: str = ""
    timeout: float = 0.0
    unnamed: bool = False


class Entry(NamedTuple):
    """One recorded call. ``number`` counts the collectives of its group, ``record`` all calls of its rank.

    ``created`` is wall-clock time in seconds, ``stack`` a row of ``Snapshot.stacks`` (0: not known). ``thread`` is the
    id of the calling thread: the kernel's for a live rank, pthread's in a file, 0 where not known.
    """

    number: int
    operation: int
    record: int
    state: str
    created: float = 0.0
    stack: int = 0
    thread: int = 0


class Track(NamedTuple):
    """The calls of one rank in one group.

    ``history`` has a row of ``Snapshot.operations``, of four bytes, for each collective from number ``first`` on.
    Earlier ones have left the ring buffer. ``pending`` are the calls that have not completed, ``last`` is the newest
    call. ``completed`` is the number of the last completed call, ``since`` is when call ``first`` was created.
    """

    group: int
    first: int
    history: bytes
    completed: int
    pending: tuple[Entry, ...] = ()
    last: Entry | None = None
    since: float = 0.0

    @property
    def reached(self) -> int:
        """The number of the newest collective that this rank entered."""
        return self.first + len(self.history) // ROW_BYTES - 1

    def row(self, number: int) -> int:
        """The operation at this number, or ``NOT_RECORDED``."""
        start = (number - self.first) * ROW_BYTES
        return int.from_bytes(self.history[start : start + ROW_BYTES], "little") if start >= 0 else NOT_RECORDED


class Transfer(NamedTuple):
    """A send or recv that has not completed. ``peer`` is the other rank, numbered in the whole job; -1: not known."""

    group: int
    sends: bool
    peer: int
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """The content of one rank's flight recorder at ``time`` (0: not known, as in a file).

    ``notes`` are what only the process itself knows of its calls (the FSDP module that it gathers).
    """

    version: str
    time: float = 0.0
    tracks: tuple[Track, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    wrapped: bool = False
    newest: float = 0.0
    source: str = ""
    notes: dict[str, str] = field(default_factory=dict)


class RecorderTable:
    """Tables with one row for each different operation and group. Row 0 of operations is ``NOT_RECORDED``."""

    def __init__(self) -> None:
        self.operations: list[Operation] = [Operation("")]
        self.groups: list[Group] = []
        self._operation_row: dict[Operation, int] = {self.operations[0]: 0}
        self._group_row: dict[tuple[str, str, str, str], int] = {}

    def operation(self, operation: Operation) -> int:
        """Return the row of an operation."""
        row = self._operation_row.get(operation)
        if row is None:
            row = self._operation_row[operation] = len(self.operations)
            self.operations.append(operation)
        return row

    def group(self, group: Group) -> int:
        """Return the row of a group."""
        # A group may have two backends (cpu:gloo,cuda:nccl). Each numbers its own calls.
        key = (group.name, group.description, group.ranks, group.backend)
        row = self._group_row.get(key)
        if row is None:
            row = self._group_row[key] = len(self.groups)
            self.groups.append(group)
        return row


def pack_rows(rows: Iterable[int]) -> bytes:
    """Return a history from the rows of its operations."""
    packed = array("I", rows)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_rows(history: bytes) -> array[int]:
    """Return the rows of a history.

    >>> list(unpack_rows(pack_rows([1, 500, 70000])))
    [1, 500, 70000]
    """
    rows = array("I")
    rows.frombytes(history)
    if sys.byteorder == "big":
        rows.byteswap()
    return rows


def slice_of(track: Track, first: int, last: int) -> bytes:
    """Return the part of a history from number ``first`` to ``last``, both included, to compare it with others."""
    return track.history[max(0, first - track.first) * ROW_BYTES : max(0, last + 1 - track.first) * ROW_BYTES]


def members_of(group: Group) -> RankSet:
    return RankSet.parse(group.ranks)
