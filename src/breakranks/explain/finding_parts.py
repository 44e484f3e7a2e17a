"""The parts of findings: places, ranks, activities, calls. ``show.wording`` turns them into sentences."""

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
    """The ranks that a sentence is about. ``host`` and ``pid`` belong to a single rank, ``hosts`` to several; hosts are
    given only if the job has more than one. ``whole_host``: these are all ranks of the host."""

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
    socket that it is blocked on, ``peer`` the process at the other end of a pipe, and ``verb`` what it does to it;
    ``context`` is the larger operation. ``stands``: for how many seconds it has been there. ``left``: seconds until its
    own sleep or timeout ends."""

    word: str
    op: str = ""
    about: str = ""
    peer: str = ""
    verb: str = ""
    context: str = ""
    where: Where | None = None
    stands: float = 0.0
    left: float | None = None


class GroupName(Struct, frozen=True, kw_only=True):
    """A process group. ``kind``: ``world``, ``named`` (it has a description), ``numbered`` (it has none) or ``ranks``
    (the dump names no groups). ``members`` are given only where the name is not unique."""

    name: str
    kind: str = "named"
    members: str = ""


class CallName(Struct, frozen=True, kw_only=True):
    """A collective or transfer: ``all_reduce #239 of mesh_tp``, ``recv from rank 3``. Without a recorder only its name
    is known. ``groups`` above 1: the same call in that many groups."""

    operation: str
    number: int | None = None
    group: GroupName | None = None
    peer: int | None = None
    sends: bool = False
    groups: int = 1


class WaitPlace(Struct, frozen=True, kw_only=True):
    """Where ranks wait. ``others_elsewhere``: only some of the ranks named before are there; the others are in other
    calls."""

    call: CallName
    where: Where | None = None
    others_elsewhere: bool = False


class HeldUp(Struct, frozen=True, kw_only=True):
    """The ranks that wait for the culprits of a finding, and where most of those are that wait for them directly.

    ``through``: how many of them wait through other ranks, which belong to that many other ``groups`` (None: not
    known). ``at`` None: the sentence has already named the place. ``mutual``: the sentence has already said for what
    they wait.
    """

    ranks: str
    through: int = 0
    groups: int | None = None
    at: WaitPlace | None = None
    mutual: bool = False
    # A larger number of ranks is counted, not listed.
    most: int | None = None
