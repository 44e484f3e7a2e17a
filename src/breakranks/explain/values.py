"""What findings are made of: places, ranks, activities, calls. ``show.wording`` turns them into sentences."""

from __future__ import annotations

from msgspec import Struct

from breakranks.rankset import RankSet
from breakranks.snapshot.model import Frame


class Where(Struct, frozen=True):
    """A line of code."""

    function: str
    file: str
    line: int


def where_of(frame: Frame | None) -> Where | None:
    return None if frame is None else Where(frame.function, frame.file, frame.line)


class Subject(Struct, frozen=True, kw_only=True):
    """The ranks that a sentence is about. ``host`` and ``pid`` are of a single rank, ``hosts`` of several, both only
    where the job has more than one host. ``whole_host``: they are all ranks of it."""

    ranks: str
    host: str = ""
    pid: int = 0
    hosts: tuple[str, ...] = ()
    whole_host: bool = False

    @property
    def count(self) -> int:
        return len(RankSet.parse(self.ranks))


class Doing(Struct, frozen=True, kw_only=True):
    """What a thread does. ``word`` is an activity of the frame table, ``op`` says which; ``about`` is the file or
    socket that it is blocked on and ``verb`` what is done to it; ``context`` is what the work is part of. ``stands``:
    for how long it has been there. ``left``: when its own sleep or timeout ends."""

    word: str
    op: str = ""
    about: str = ""
    verb: str = ""
    context: str = ""
    where: Where | None = None
    stands: float = 0.0
    left: float | None = None


class GroupName(Struct, frozen=True, kw_only=True):
    """A process group. ``kind``: ``world``, ``named`` (it has a description), ``numbered`` (it has none) or ``ranks``
    (a dump that names no groups). ``members`` only where the name alone does not tell it from others."""

    name: str
    kind: str = "named"
    members: str = ""


class CallName(Struct, frozen=True, kw_only=True):
    """A collective or transfer: ``all_reduce #239 of mesh_tp``, ``recv from 3``. Without a recorder only its name is
    known. ``groups`` more than one: the same call in that many groups."""

    operation: str
    number: int | None = None
    group: GroupName | None = None
    peer: int | None = None
    sends: bool = False
    groups: int = 1


class WaitPlace(Struct, frozen=True, kw_only=True):
    """Where ranks wait. ``others_elsewhere``: not all of those that are named; the rest is in other calls."""

    call: CallName
    where: Where | None = None
    others_elsewhere: bool = False


class HeldUp(Struct, frozen=True, kw_only=True):
    """The ranks that wait for the culprits of a finding, and where most of those are that wait for them directly.

    ``through``: how many of them wait through others, which are of so many other ``groups`` (None: not known).
    ``at`` None: the sentence before has said it. ``mutual``: that they wait for the culprits need not be said.
    """

    ranks: str
    through: int = 0
    groups: int | None = None
    at: WaitPlace | None = None
    mutual: bool = False
    # More than this many are counted, not listed.
    most: int | None = None
