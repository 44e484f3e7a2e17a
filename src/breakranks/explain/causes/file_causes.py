"""A rank is blocked on a file: a lock file, or a read or write that does not end."""

from __future__ import annotations

from msgspec import Struct

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.finding_parts import Doing, Subject, Where


class LockHolder(Struct, frozen=True, kw_only=True):
    """The holder of a lock: a process of this host, a rank, or both."""

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
    """The culprit holds a lock that the ranks ``wanted_by`` wait for, at ``wanted_where``."""

    path: str
    doing: Doing
    wanted_by: str
    wanted_where: Where | None


class BlockedIo(Cause, frozen=True, kw_only=True):
    """``peer``: the process at the other end, if ``about`` is a pipe."""

    verb: str
    about: str
    peer: str = ""
    state: str
    where: Where | None


class BlockedBelow(Cause, frozen=True, kw_only=True):
    """Ranks of one host, each on its own file under one folder."""

    folder: str
    uninterruptible: bool


class UnknownFile(Fact, frozen=True, kw_only=True):
    pass


class FileExists(Fact, frozen=True, kw_only=True):
    path: str
    age: float | None


class FileNotOpen(Fact, frozen=True, kw_only=True):
    """``shared``: the file is on a disk that other hosts use too."""

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
    """A system call. ``kernel`` is the kernel function that it sleeps in."""

    call: str
    kernel: str = ""


class BytesMoved(Fact, frozen=True, kw_only=True):
    count: int
    seconds: float
