"""What was seen of a job: plain typed values, with no way to touch a process.

A :class:`Snapshot` holds the evidence of every rank. Stacks are kept once, in a table: a thread has the number of its
row in ``Snapshot.stacks``. So what is stored, sent and folded grows with the number of *different* stacks, not with
the number of ranks.

msgspec writes named tuples as arrays and dataclasses as objects. New fields go to the end and have a default, so that
files of older versions can be read. This module runs on hosts too, which have no msgspec.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import Introspection
from breakranks.snapshot.recorder_tables import Group, Operation, Recorder

FORMAT_VERSION = 2  # raised with each new column of a NamedTuple, because older versions cannot read the row
PROGRESS = "#"


class Frame(NamedTuple):
    """One call. ``file`` is the full path, for a native frame that of the library."""

    function: str
    file: str
    line: int
    native: bool = False


class Call(NamedTuple):
    """The system call that a thread is blocked in.

    ``fd`` is the file it operates on (-1: none), ``path`` the name of the file where it is an argument of the call.
    ``left`` is the number of seconds until the call's own deadline (a sleep, a wait with a timeout). It is None where
    the call waits forever or its deadline cannot be read.
    """

    name: str
    fd: int = -1
    left: float | None = None
    path: str = ""

    @property
    def is_sleep(self) -> bool:
        """Whether the call only waits for time to pass. Python 3.10 sleeps in a select without a file."""
        if self.name in ("select", "pselect6"):
            return self.fd < 0 and self.left is not None
        return self.name in ("clock_nanosleep", "nanosleep", "pause")


class Thread(NamedTuple):
    """One thread at one moment.

    ``stack`` is its Python stack, ``native`` the same with the C frames merged in. Both are rows of
    ``Snapshot.stacks``; row 0 is the empty stack. A thread without Python has only ``native``.
    ``ran`` is the time in nanoseconds that it ran or was ready to run, ``switches`` how often it got a CPU. ``idle`` is
    the number of seconds since it last ran, read before breakranks stopped it. ``hints`` are local variables that are
    known to be harmless and useful (the ``src`` of a ``recv``, the folder of a build lock), by ``function.name``.
    ``function.#`` is a mark of all plain values in a frame of user code; it changes when they do.
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
    hints: dict[str, str] = {}  # noqa: RUF012  # shared, and never changed


class Sample(NamedTuple):
    """A process at one moment. The main thread is the first of the threads.

    For ``quiet`` seconds before this sample breakranks did not touch the process. ``quiet_ran`` are the threads (by
    tid) that ran in that time for longer than a sample makes them run; None: there was no such time.
    """

    time: float
    state: str
    cpu: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0
    threads: tuple[Thread, ...] = ()
    quiet: float = 0.0
    quiet_ran: tuple[int, ...] | None = None


class OpenFile(NamedTuple):
    """An open file descriptor.

    ``kind`` is file, dir, pipe, tty, device, anon or deleted. ``peer`` names the process at the other end of a pipe
    that a thread is blocked on.
    """

    fd: int
    path: str
    kind: str
    peer: str = ""


class Socket(NamedTuple):
    """A socket. ``local`` and ``peer`` are ``address:port`` or the path of a UNIX socket.

    ``peer_pid`` is 0 where the other end is not on this host. ``retries`` is how often the kernel has retransmitted
    data since the other end last answered.
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


class FileLock(NamedTuple):
    """A lock on a file, from /proc/locks, or a lock file that a process polls.

    ``kind`` is flock, posix, ofdlck (kernel locks), file (a lock file of a known library), own (a lock file of user
    code), conflict (a file that the process has open and another has locked) or gone. ``holder`` is 0 where no process
    on this host holds it. ``age`` is the number of seconds since the file was created.
    """

    path: str
    kind: str
    waiter: int
    holder: int = 0
    holder_command: str = ""
    age: float | None = None


class Problem(NamedTuple):
    """Why part of the evidence is missing, and what would give it.

    ``recorder_pid`` is the process whose flight recorder cannot be read (0: it is about something else), and ``detail``
    is then the part of ``what`` that follows the name of the process. ``hosts`` have the problem, if there are several.
    ``late``: a process did not answer in time; asked again, it may.
    """

    what: str
    remedy: str = ""
    recorder_pid: int = 0
    detail: str = ""
    hosts: tuple[str, ...] = ()
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process and its samples. Secrets are removed from ``command``. ``inside`` is what the process reported."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank: its number, its host and its process. Helpers are ``process.children``.

    ``recorder`` is the content of its flight recorder. A rank that is known only from a dump has a process with pid 0.
    """

    rank: int
    host: str
    process: Process
    local_rank: int = -1
    recorder: Recorder | None = None

    @property
    def only_recorded(self) -> bool:
        """Whether nothing is known of the rank except its flight recorder."""
        return self.recorder is not None and not self.process.pid


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Ranks that should exist and were not seen.

    ``reason`` is ``exited`` (the launcher is here and the rank is not), ``absent`` (never seen here, with no sign that
    it ran), ``elsewhere`` (on another host) or ``unreachable``. ``host`` is where they ran, if that is known and the
    job has several hosts. ``exited`` is how many of them have exited, where it is not known which. ``not_started``:
    their launcher has started no rank yet. ``guessed``: that they should be here is a guess.
    """

    ranks: str
    reason: str
    detail: str = ""
    host: str = ""
    exited: int = 0
    not_started: bool = False
    guessed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of the target, sampled or not.

    ``state`` is ``seen``, ``lost`` (it was seen and does not answer any more) or why it was never seen:
    ``unreachable``, ``refused``, ``no-python``, ``timed-out``, ``failed``. ``reason`` has that in words, ``remedy``
    what to do. ``clock`` is its clock minus the controller's, in seconds, known to within ``clock_error``.
    ``addresses`` are those of its network interfaces.
    """

    name: str
    cpus: int = 0
    load: float = 0.0
    memory: int = 0
    oom_kills: tuple[str, ...] = ()
    oom_killed: tuple[int, ...] = ()
    state: str = "seen"
    reason: str = ""
    remedy: str = ""
    clock: float = 0.0
    clock_error: float = 0.0
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one launch started. ``key`` is unique on the host and is the argument of ``--job``.

    ``ids`` are the names that the launcher gave it (run id, MASTER_ADDR, Slurm job id).
    """

    key: str
    launcher: str
    world_size: int = 0
    started: float = 0.0
    command: tuple[str, ...] = ()
    ids: dict[str, str] = field(default_factory=dict)
    launcher_pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The samples of a whole job. ``target`` is how hosts were reached, as words for a shell; "": this host."""

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
    def spans_hosts(self) -> bool:
        """Whether ranks are on several hosts, or on another host than the one it was made on: then hosts are shown."""
        return len(self.hosts) > 1 or bool(self.target)

    @property
    def of_dumps(self) -> bool:
        """Whether nothing is known of the ranks except their flight recorders: there are no processes to show."""
        return bool(self.ranks) and all(rank.only_recorded for rank in self.ranks)

    def stack(self, row: int) -> tuple[Frame, ...]:
        """The frames of one row, outermost first."""
        return tuple(self.frames[i] for i in self.stacks[row])

    @property
    def has_stacks(self) -> bool:
        """Whether any stack could be read."""
        return len(self.stacks) > 1


class StackTable:
    """A table with one row for each different stack. Row 0 is the empty stack.

    ``add`` is called once per observed thread. A known stack costs one dictionary lookup per frame and one more.
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
        stack_row = self._stack_row.get(key)
        if stack_row is None:
            stack_row = self._stack_row[key] = len(self.stacks)
            self.stacks.append(key)
        return stack_row


def processes(snapshot: Snapshot) -> Iterator[Process]:
    """Yield every process of the job that was sampled: ranks, their helpers, helpers of helpers."""
    for rank in snapshot.ranks:
        yield from family(rank.process)


def only(snapshot: Snapshot, ranks: RankSet | None) -> Snapshot:
    """Return the snapshot with only these ranks; None: all."""
    if ranks is None:
        return snapshot
    return replace(snapshot, ranks=tuple(rank for rank in snapshot.ranks if rank.rank in ranks))


def last_samples(snapshot: Snapshot, count: int) -> Snapshot:
    """Return the snapshot with only the last ``count`` samples of each process."""

    def shortened(process: Process) -> Process:
        children = tuple(map(shortened, process.children))
        return replace(process, samples=process.samples[-count:], children=children)

    ranks = tuple(replace(rank, process=shortened(rank.process)) for rank in snapshot.ranks)
    launcher = None if snapshot.launcher is None else shortened(snapshot.launcher)
    return replace(snapshot, ranks=ranks, launcher=launcher)


def family(process: Process) -> Iterator[Process]:
    """Yield a process and all its descendants."""
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
    "last_samples",
    "only",
    "processes",
]
