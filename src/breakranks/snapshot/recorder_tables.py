"""What torch's flight recorder says of each rank: which collective of which group, and how far it got.

Operations and groups are kept once, in tables of the snapshot; a rank's history in a group is a row of
numbers. Ranks that did the same have the same bytes, so that comparing a thousand histories is comparing bytes.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from msgspec import Struct

from breakranks.rankset import RankSet

SCHEDULED, STARTED, COMPLETED = "scheduled", "started", "completed"
NOT_RECORDED = 0  # the row of an operation that the ring has no record of
ROW = 4  # bytes of a row in a history, least significant first


class Operation(Struct, frozen=True, array_like=True, gc=False):
    """What was asked for: equal on all members, if all is well. Sizes and types are as the recorder writes them."""

    name: str
    inputs: str = ""
    outputs: str = ""
    types: str = ""


class Group(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A process group. ``ranks`` are its members, folded, as far as known; ``source`` says from where: ``config``
    (the recorder or the process said so), ``world``, or ``seen`` (rebuilt from who recorded something in it: there
    may be more members)."""

    name: str
    description: str = ""
    ranks: str = ""
    source: str = "config"
    backend: str = ""
    timeout: float = 0.0


class Entry(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One recorded call. ``number`` counts the collectives of its group, ``record`` all calls of its rank.

    ``created`` is wall-clock seconds, ``stack`` a row of ``Snapshot.stacks`` (0: not known), ``thread`` the id
    of the thread that called (the kernel's of a live rank, pthread's in a file; 0: not known).
    """

    number: int
    operation: int
    record: int
    state: str
    created: float = 0.0
    stack: int = 0
    thread: int = 0


class Track(Struct, frozen=True, kw_only=True, array_like=True):
    """One rank's way through one group.

    ``history`` has a row of ``Snapshot.operations`` for each collective from number ``first`` on, four bytes
    each; the ring has forgotten what was before. ``pending`` are the calls that have not
    completed, ``last`` the newest call. ``completed`` is the number of the last that has, ``since`` the time at which
    the first was created.
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
        """The number of the newest collective that this rank has entered."""
        return self.first + len(self.history) // ROW - 1

    def row(self, number: int) -> int:
        """The operation at this number, or ``NOT_RECORDED``."""
        start = (number - self.first) * ROW
        return int.from_bytes(self.history[start : start + ROW], "little") if start >= 0 else NOT_RECORDED


class Transfer(Struct, frozen=True, array_like=True, gc=False):
    """A send or recv that has not completed. ``peer`` is the other end's rank in the whole job, -1 unknown."""

    group: int
    sends: bool
    peer: int
    entry: Entry


class Recorder(Struct, frozen=True, kw_only=True):
    """What one rank's flight recorder held at ``time`` (0: not known, as in a file).

    ``notes`` are words on what the rank was about that only its inside knows (the FSDP module that it gathers).
    """

    version: str
    time: float = 0.0
    tracks: tuple[Track, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    wrapped: bool = False
    newest: float = 0.0
    source: str = ""
    notes: dict[str, str] = {}


class RecorderTable:
    """Gives every different operation and group one row for the whole snapshot. Row 0 of operations is none."""

    def __init__(self) -> None:
        self.operations: list[Operation] = [Operation("")]
        self.groups: list[Group] = []
        self._operation_row: dict[Operation, int] = {self.operations[0]: 0}
        self._group_row: dict[tuple[str, str, str, str], int] = {}

    def operation(self, one: Operation) -> int:
        row = self._operation_row.get(one)
        if row is None:
            row = self._operation_row[one] = len(self.operations)
            self.operations.append(one)
        return row

    def group(self, one: Group) -> int:
        # One group may have two backends (cpu:gloo,cuda:nccl), and each counts for itself.
        key = (one.name, one.description, one.ranks, one.backend)
        row = self._group_row.get(key)
        if row is None:
            row = self._group_row[key] = len(self.groups)
            self.groups.append(one)
        return row


def pack_rows(rows: Iterable[int]) -> bytes:
    """A history from the rows of its operations."""
    made = array("I", rows)
    if sys.byteorder == "big":
        made.byteswap()
    return made.tobytes()


def unpack_rows(history: bytes) -> array[int]:
    """
    >>> list(unpack_rows(pack_rows([1, 500, 70000])))
    [1, 500, 70000]
    """
    found = array("I")
    found.frombytes(history)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def slice_of(track: Track, first: int, last: int) -> bytes:
    """The part of a history from number ``first`` to ``last``, both included, to be compared with others'."""
    return track.history[max(0, first - track.first) * ROW : max(0, last + 1 - track.first) * ROW]


def members_of(group: Group) -> RankSet:
    return RankSet.parse(group.ranks)
