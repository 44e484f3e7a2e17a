"""What only a process itself knows, asked of it by code of ours that ran there: whose lock, which file, how far.

Threads are named by the kernel's number, as in the samples. Only what held when the newest sample was taken is kept.
"""

from __future__ import annotations

from msgspec import Struct

# How it is known who has a lock: it says so itself, its thread stands inside a `with`, or has called `acquire()`.
BY_LOCK, BY_WITH, BY_ACQUIRE = "lock", "with", "acquire"


class ThreadWait(Struct, frozen=True, kw_only=True, array_like=True):
    """What a thread waits for inside its process.

    ``kind`` is the class (``Lock``, ``Queue``, ``Thread``), ``name`` what the code calls it (``self.lock``).
    ``owner`` is the thread that has it, or is awaited (0: not known); ``proof`` how that is known, and ``function``,
    ``file`` and ``line`` where the owner took it. ``state`` is a word on the thing (``empty``), ``users`` the threads
    whose variables hold it, ``ended`` the names of threads that the waiting one knew and that have ended.
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


class Loop(Struct, frozen=True, kw_only=True, array_like=True):
    """The whole numbers that count the rounds of the loops in one frame of the user's, outermost first."""

    tid: int
    function: str
    file: str
    names: tuple[str, ...]
    values: tuple[int, ...]


class PolledFile(Struct, frozen=True, array_like=True, gc=False):
    """A lock file that a thread waits for; ``kind`` as in ``FileLock``."""

    tid: int
    path: str
    kind: str


class Loader(Struct, frozen=True, array_like=True, gc=False):
    """The batch that a DataLoader gives next, and the worker that owes it: its number (-1: not known) and pid."""

    tid: int
    batch: int
    worker: int = -1
    pid: int = 0


class Item(Struct, frozen=True, array_like=True):
    """In a DataLoader's worker: the batch it is at, its samples, and the one being read (None: not known)."""

    worker: int = -1
    batch: int = -1
    samples: tuple[int, ...] = ()
    index: int | None = None


class Introspection(Struct, frozen=True, kw_only=True):
    time: float = 0.0
    waits: tuple[ThreadWait, ...] = ()
    loops: tuple[Loop, ...] = ()
    polled: tuple[PolledFile, ...] = ()
    loader: Loader | None = None
    item: Item | None = None

    def wait_of(self, tid: int) -> ThreadWait | None:
        return next((one for one in self.waits if one.tid == tid), None)
