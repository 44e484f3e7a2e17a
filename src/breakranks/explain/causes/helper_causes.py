"""A rank waits for a helper process that it has started: a worker of a data loader or of a pool.

``task``: what it waits in, such as ``multiprocessing.Pool``; empty: it loads data.
"""

from __future__ import annotations

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.finding_parts import Doing, Where


class WorkerGone(Cause, frozen=True, kw_only=True):
    worker: int
    pid: int
    where: Where | None


class HelperDead(Cause, frozen=True, kw_only=True):
    task: str
    pids: tuple[int, ...]
    where: Where | None


class HelperStopped(Cause, frozen=True, kw_only=True):
    task: str
    pid: int
    state: str


class HelperStuck(Cause, frozen=True, kw_only=True):
    """``worker``: its number in the loader. ``sample``: the sample that it reads. None where that is not known."""

    task: str
    pid: int
    doing: Doing
    worker: int | None = None
    sample: int | None = None


class TaskLost(Cause, frozen=True, kw_only=True):
    op: str
    where: Where | None


class NoHelper(Cause, frozen=True, kw_only=True):
    task: str
    where: Where | None


class HelperWait(Cause, frozen=True, kw_only=True):
    task: str
    where: Where | None


class BatchDue(Fact, frozen=True, kw_only=True):
    """``gone``: the process no longer exists."""

    batch: int
    worker: int
    pid: int
    gone: bool = False


class HelperZombies(Fact, frozen=True, kw_only=True):
    pids: tuple[int, ...]
    parent: int


class HelperState(Fact, frozen=True, kw_only=True):
    pid: int
    state: str


class HelperDoing(Fact, frozen=True, kw_only=True):
    pid: int
    doing: Doing


class ForkedWithLock(Fact, frozen=True, kw_only=True):
    pass


class ReadsSample(Fact, frozen=True, kw_only=True):
    """``batch`` below 0: it is not known."""

    index: int
    batch: int
    samples: tuple[int, ...]
    more: bool


class HelpersIdle(Fact, frozen=True, kw_only=True):
    count: int


class HelperReplaced(Fact, frozen=True, kw_only=True):
    seconds: float


class NoChildren(Fact, frozen=True, kw_only=True):
    pid: int


class HelperCommands(Fact, frozen=True, kw_only=True):
    commands: tuple[str, ...]
