"""What was seen of a job: plain typed values, with no way to touch a process.

A :class:`Snapshot` holds every rank's evidence. Stacks are kept once, in a table: a thread says which
row of ``Snapshot.stacks`` it stands on. So what is stored, sent and folded grows with the number of
*different* stacks, not with ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import Introspection
from breakranks.snapshot.recorder_tables import Group, Operation, Recorder

FORMAT_VERSION = 1
PROGRESS = "#"


class Frame(Struct, frozen=True, array_like=True, gc=False):
    """One call. ``file`` is the whole path; for a native frame it is the library."""

    function: str
    file: str
    line: int
    native: bool = False


class Call(Struct, frozen=True, array_like=True, gc=False):
    """The system call that a thread is blocked in.

    ``fd`` is the file it is about (-1: none), ``path`` its name where the call itself says it. ``left`` is how many
    seconds remain until the call's own deadline (a sleep, a wait with a timeout); None: it waits for ever, or
    the deadline cannot be read.
    """

    name: str
    fd: int = -1
    left: float | None = None
    path: str = ""

    @property
    def is_sleep(self) -> bool:
        """Whether it waits for nothing but time. Python 3.10 sleeps in a select without a file."""
        if self.name in ("select", "pselect6"):
            return self.fd < 0 and self.left is not None
        return self.name in ("clock_nanosleep", "nanosleep", "pause")


class Thread(Struct, frozen=True, kw_only=True, array_like=True):
    """One thread at one moment.

    ``stack`` is its Python stack, ``native`` the same with the C frames merged in; both are rows of
    ``Snapshot.stacks``, and row 0 is the empty stack. A thread without Python has only the second.
    ``ran`` is nanoseconds that it ran, or was ready to, ``switches`` how often it got a CPU, ``idle`` the
    seconds since it last ran, read before anything of ours touched it. ``hints`` are local variables that
    are known to be harmless and useful (the ``src`` of a ``recv``, the folder of a build lock), keyed
    ``function.name``; under ``function.#`` stands a mark of all plain values of a frame of the user's, which
    changes when they do.
    """

    tid: int
    name: str
    stack: int = 0
    native: int = 0
    state: str = "?"
    python: bool = True
    gil: bool = False
    call: Call | None = None
    ran: int = 0
    switches: int = 0
    idle: float | None = None
    hints: dict[str, str] = {}


class Sample(Struct, frozen=True, kw_only=True, array_like=True):
    """A process at one moment. Threads: the main thread first.

    ``quiet_ran`` says which threads (by tid) ran, for longer than being looked at takes, in the span of
    ``quiet`` seconds before this sample in which nothing of ours touched the process; None: there was none.
    """

    time: float
    state: str
    cpu: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0
    threads: tuple[Thread, ...] = ()
    quiet: float = 0.0
    quiet_ran: tuple[int, ...] | None = None


class OpenFile(Struct, frozen=True, array_like=True, gc=False):
    """``kind`` is file, dir, pipe, tty, device, anon or deleted. ``peer`` is who has the other end of a pipe
    that a thread is blocked on."""

    fd: int
    path: str
    kind: str
    peer: str = ""


class Socket(Struct, frozen=True, array_like=True, gc=False):
    """``local`` and ``peer`` are ``address:port`` or a UNIX socket's path; ``peer_pid`` 0: not here.

    ``retries`` is how often the kernel has sent the same data again since the other end last answered.
    """

    fd: int
    protocol: str
    local: str
    peer: str
    status: str
    send_queue: int = 0
    receive_queue: int = 0
    peer_pid: int = 0
    peer_command: str = ""
    retries: int = 0


class FileLock(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A lock on a file, from /proc/locks or a lock file that somebody polls for.

    ``kind`` is flock, posix, ofdlck (kernel locks), file (a lock file of a known library), own (one of the
    user's making), conflict (a file that the process has open and another has locked) or gone. ``holder`` 0: nobody
    alive on this host. ``age`` is seconds since the file was made.
    """

    path: str
    kind: str
    waiter: int
    holder: int = 0
    holder_command: str = ""
    age: float | None = None


class Problem(Struct, frozen=True, array_like=True, gc=False):
    """Why part of the evidence is missing, and what would give it."""

    what: str
    remedy: str = ""


class Process(Struct, frozen=True, kw_only=True):
    """A process and its samples. ``command`` has had its secrets removed. ``inside`` is what it said of itself."""

    pid: int
    parent: int
    command: tuple[str, ...]
    name: str = ""
    user: str = ""
    state: str = "?"
    started: float = 0.0
    rss: int = 0
    cpu_percent: float = 0.0
    wchan: str = ""
    python: bool = True
    samples: tuple[Sample, ...] = ()
    files: tuple[OpenFile, ...] = ()
    sockets: tuple[Socket, ...] = ()
    locks: tuple[FileLock, ...] = ()
    problems: tuple[Problem, ...] = ()
    children: tuple[Process, ...] = ()
    inside: Introspection | None = None


class Rank(Struct, frozen=True, kw_only=True):
    """One rank: its number, its place, its process. Helpers are ``process.children``.

    ``recorder`` is what its flight recorder said; a rank of which only that is known has a process without a pid.
    """

    rank: int
    host: str
    process: Process
    local_rank: int = -1
    recorder: Recorder | None = None


class Missing(Struct, frozen=True):
    """Ranks that should exist and were not seen.

    ``reason`` is ``exited`` (its launcher is here and it is not), ``absent`` (never seen here, and
    nothing says that it ran), ``elsewhere`` (another host's) or ``unreachable``. ``host``: where they ran, if that is
    known and the job has several. ``exited``: how many of them are known to have exited, where it is not known which.
    ``not_started``: their launcher has started no rank yet. ``guessed``: that they should be here is a guess.
    """

    ranks: str
    reason: str
    detail: str = ""
    host: str = ""
    exited: int = 0
    not_started: bool = False
    guessed: bool = False


class Host(Struct, frozen=True, kw_only=True):
    """A host of the target, whether it could be looked at or not.

    ``state`` is ``seen``, ``lost`` (it was seen, and then no more) or why it never was: ``unreachable``, ``refused``,
    ``no-python``, ``timed-out``, ``failed``; ``reason`` says it in words, ``remedy`` what to do. ``clock`` is its
    clock minus the controller's, in seconds, known to ``clock_error``. ``addresses`` are those of its network
    interfaces.
    """

    name: str
    cpus: int = 0
    load: float = 0.0
    memory: int = 0
    oom_kills: tuple[str, ...] = ()
    state: str = "seen"
    reason: str = ""
    remedy: str = ""
    clock: float = 0.0
    clock_error: float = 0.0
    addresses: tuple[str, ...] = ()


class Job(Struct, frozen=True, kw_only=True):
    """What a launch started. ``key`` tells it from others on the host and is what ``--job`` takes.

    ``ids`` are the names that its launcher gave it (run id, MASTER_ADDR, Slurm job id).
    """

    key: str
    launcher: str
    world_size: int = 0
    started: float = 0.0
    command: tuple[str, ...] = ()
    ids: dict[str, str] = {}
    launcher_pid: int = 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """The samples of a whole job. ``target`` is how hosts were reached, as words for a shell; "": it was this host."""

    version: int
    made_by: str
    time: float
    job: Job
    ranks: tuple[Rank, ...]
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    hosts: tuple[Host, ...] = ()
    missing: tuple[Missing, ...] = ()
    problems: tuple[Problem, ...] = ()
    interval: float = 0.0
    native: bool = False
    launcher: Process | None = None
    groups: tuple[Group, ...] = ()
    operations: tuple[Operation, ...] = ()
    target: str = ""

    @property
    def remote_ranks(self) -> bool:
        """Whether it is of several hosts, or of another than the one that it was made on: then hosts are named."""
        return len(self.hosts) > 1 or bool(self.target)

    def stack(self, row: int) -> tuple[Frame, ...]:
        """The frames of one row, outermost first."""
        return tuple(self.frames[i] for i in self.stacks[row])


class StackTable:
    """Gives every different stack one row. Row 0 is the empty stack.

    Fed once per observed thread; a stack that was seen before costs one dictionary look-up.
    """

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.stacks: list[tuple[int, ...]] = [()]
        self._frame_row: dict[Frame, int] = {}
        self._stack_row: dict[tuple[int, ...], int] = {(): 0}

    def add(self, frames: tuple[Frame, ...]) -> int:
        rows = []
        for frame in frames:
            row = self._frame_row.get(frame)
            if row is None:
                row = self._frame_row[frame] = len(self.frames)
                self.frames.append(frame)
            rows.append(row)
        key = tuple(rows)
        found = self._stack_row.get(key)
        if found is None:
            found = self._stack_row[key] = len(self.stacks)
            self.stacks.append(key)
        return found


def processes(snapshot: Snapshot) -> Iterator[Process]:
    """Every process of the job that was looked at: ranks, their helpers, helpers of helpers."""
    for rank in snapshot.ranks:
        yield from family(rank.process)


def only(snapshot: Snapshot, ranks: RankSet | None) -> Snapshot:
    """The same snapshot with these ranks alone."""
    if ranks is None:
        return snapshot
    return replace(snapshot, ranks=tuple(rank for rank in snapshot.ranks if rank.rank in ranks))


def family(process: Process) -> Iterator[Process]:
    """A process and everything below it."""
    yield process
    for child in process.children:
        yield from family(child)


__all__ = [
    "FORMAT_VERSION",
    "PROGRESS",
    "Call",
    "FileLock",
    "Frame",
    "Host",
    "Job",
    "Missing",
    "OpenFile",
    "Problem",
    "Process",
    "Rank",
    "Sample",
    "Snapshot",
    "Socket",
    "StackTable",
    "Thread",
    "family",
    "only",
    "processes",
]
