"""Threads of one process that wait for each other, or for a lock, a queue, an event."""

from __future__ import annotations

from msgspec import Struct

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.finding_parts import Doing, Where


class WaitedObject(Struct, frozen=True, kw_only=True):
    """What a thread waits for. ``kind``: ``Lock``, ``Queue``, ``Thread``, ``import lock``. ``name``: its name in the
    code. ``taken``: where its owner took it. ``state``: the state of a queue or an event."""

    kind: str
    name: str = ""
    state: str = ""
    taken: Where | None = None


class ThreadStep(Struct, frozen=True, kw_only=True):
    """A thread of a chain, and what it waits for; None: it does something else."""

    thread: str
    doing: Doing
    wait: WaitedObject | None = None


class ThreadRing(Cause, frozen=True, kw_only=True):
    """Threads that wait for each other: the last step leads back to the step ``back``."""

    steps: tuple[ThreadStep, ...]
    back: int


class SelfDeadlock(Cause, frozen=True, kw_only=True):
    wait: WaitedObject
    where: Where | None


class OwnedByThread(Cause, frozen=True, kw_only=True):
    """The main thread waits for what another thread holds, and that thread may wait for yet another one."""

    steps: tuple[ThreadStep, ...]


class AtEndOfProgram(Cause, frozen=True, kw_only=True):
    threads: tuple[str, ...]


class ThreadsAtLocks(Cause, frozen=True, kw_only=True):
    count: int
    threads: tuple[str, ...]
    where: Where | None


class AwaitsObject(Cause, frozen=True, kw_only=True):
    """``ended``: threads that could have ended the wait, and have ended themselves."""

    wait: WaitedObject
    where: Where | None
    ended: tuple[str, ...]


class AwaitsUnknown(Cause, frozen=True, kw_only=True):
    """``what``: a lock, thread, queue or future. ``releasable``: another thread might release it."""

    what: str
    where: Where | None
    releasable: bool


class ThreadWaitsFor(Fact, frozen=True, kw_only=True):
    """``owner``: the thread that holds it, if that is known."""

    thread: str
    wait: WaitedObject
    where: Where | None
    owner: str


class ThreadDoes(Fact, frozen=True, kw_only=True):
    """``placed``: whether to name its place."""

    thread: str
    doing: Doing
    placed: bool = True


class ThreadWaitsIn(Fact, frozen=True, kw_only=True):
    thread: str
    op: str
    where: Where | None


class UnknownLock(Fact, frozen=True, kw_only=True):
    pass


class QueueUsers(Fact, frozen=True, kw_only=True):
    """Other threads that have the queue in their variables."""

    queue: str
    threads: tuple[str, ...]


class ReportedWait(Fact, frozen=True, kw_only=True):
    """What a thread waits for: an object, a file, or a batch of a worker."""

    wait: WaitedObject | None = None
    owner: str = ""
    own: bool = False
    path: str = ""
    batch: int = 0
    worker: int = -1
