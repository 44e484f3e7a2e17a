"""A file stands in the way: a lock file, or a read or write that does not end."""

from __future__ import annotations

from msgspec import Struct

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.values import Doing, Subject, Where


class LockHolder(Struct, frozen=True, kw_only=True):
    """Who has a lock: a process of this host, a rank, or both."""

    pid: int = 0
    command: str = ""
    rank: int | None = None
    subject: Subject | None = None


class UnknownLockFile(Cause, frozen=True, kw_only=True):
    op: str
    where: Where | None


class StaleLockFile(Cause, frozen=True, kw_only=True):
    path: str
    age: float | None


class LockFileHeld(Cause, frozen=True, kw_only=True):
    path: str
    age: float | None
    holder: LockHolder


class RankHoldsLock(Cause, frozen=True, kw_only=True):
    """The culprit holds a lock that ``wanted_by`` wait for, at ``wanted_where``."""

    path: str
    doing: Doing
    wanted_by: str
    wanted_where: Where | None


class BlockedIo(Cause, frozen=True, kw_only=True):
    verb: str
    about: str
    state: str
    where: Where | None


class BlockedBelow(Cause, frozen=True, kw_only=True):
    """Ranks of one host, each on a file of its own below one folder."""

    folder: str
    uninterruptible: bool


class UnknownFile(Fact, frozen=True, kw_only=True):
    pass


class FileExists(Fact, frozen=True, kw_only=True):
    path: str
    age: float | None


class NobodyHasFile(Fact, frozen=True, kw_only=True):
    """``shared``: a disk that other hosts have, too."""

    host: str
    shared: bool


class WaitsInCall(Fact, frozen=True, kw_only=True):
    op: str
    where: Where | None


class WaitsForFile(Fact, frozen=True, kw_only=True):
    op: str
    path: str


class FileHeldBy(Fact, frozen=True, kw_only=True):
    holder: LockHolder


class LockOnFile(Fact, frozen=True, kw_only=True):
    kind: str
    path: str
    pid: int


class BlockedIn(Fact, frozen=True, kw_only=True):
    """A system call; ``kernel`` is the function of the kernel that it sleeps in."""

    call: str
    kernel: str = ""


class BytesMoved(Fact, frozen=True, kw_only=True):
    count: int
    seconds: float
