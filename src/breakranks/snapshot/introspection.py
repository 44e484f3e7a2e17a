"""What only a process itself knows, reported by injected code: who holds a lock, which file is polled, which step.

Threads have the kernel's numbers, as in the samples. Only what was still true at the newest sample is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# How the owner of a lock is known: from the lock itself, from a thread inside its `with`, or from one that called
# `acquire()`.
BY_LOCK, BY_WITH, BY_ACQUIRE = "lock", "with", "acquire"


class ThreadWait(NamedTuple):
    """What a thread waits for inside its process.

    ``kind`` is the class of the object (``Lock``, ``Queue``, ``Thread``), ``name`` its name in the code
    (``self.lock``). ``owner`` is the thread that holds it, or that is awaited (0: not known). ``proof`` is how that is
    known, ``function``, ``file`` and ``line`` are where the owner acquired it. ``state`` is the state of the object
    (``empty``), ``users`` are the threads whose variables refer to it, ``ended`` the names of threads that the waiting
    thread refers to and that have ended.
    """

    tid: int
    kind: str
    name: str = ""
    owner: int = 0
    proof: str = ""
    function: str = ""
    file: str = ""
    line: int = 0
    state: str = ""
    users: tuple[int, ...] = ()
    ended: tuple[str, ...] = ()


class Loop(NamedTuple):
    """The integers that count the iterations of the loops in one frame of user code, outermost first."""

    tid: int
    function: str
    file: str
    names: tuple[str, ...]
    values: tuple[int, ...]


class PolledFile(NamedTuple):
    """A lock file that a thread polls; ``kind`` is as in ``FileLock``. ``sure``: its loop ends with the file."""

    tid: int
    path: str
    kind: str
    sure: bool = False


class Loader(NamedTuple):
    """The next batch of a DataLoader, and the worker that loads it: its number (-1: not known) and its pid."""

    tid: int
    batch: int
    worker: int = -1
    pid: int = 0


class Item(NamedTuple):
    """In a worker of a DataLoader: its current batch, the samples in it, and the one being read (None: not known)."""

    worker: int = -1
    batch: int = -1
    samples: tuple[int, ...] = ()
    sample: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Introspection:
    """What a process reported at ``time``."""

    time: float = 0.0
    waits: tuple[ThreadWait, ...] = ()
    loops: tuple[Loop, ...] = ()
    polled: tuple[PolledFile, ...] = ()
    loader: Loader | None = None
    item: Item | None = None

    def wait_of(self, tid: int) -> ThreadWait | None:
        """Return what a thread waits for, if anything."""
        return next((wait for wait in self.waits if wait.tid == tid), None)
