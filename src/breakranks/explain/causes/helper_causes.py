"""A rank waits for a process that it started to work for it: a data loader's worker, a pool's.

``task``: what it waits in, as ``multiprocessing.Pool``; empty: it loads data.
"""

from __future__ import annotations

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.values import Doing, Where


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
    """``worker``: its number in the loader, ``sample``: what it reads; None where that is not known."""

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
    """``gone``: there is no such process."""

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
    """``batch`` below 0: not known."""

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
