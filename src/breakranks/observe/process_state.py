"""The state of a process and its threads, from /proc, without tracing it.

It is read before the stacks: ptrace wakes a thread, which resets the time since it last ran.
"""

from __future__ import annotations

import os
import time

from breakranks.observe import syscalls
from breakranks.snapshot.model import Call

_TICK = os.sysconf("SC_CLK_TCK")
_MAX_PROC_FILE_BYTES = 65536  # more than any file that is read here


class ThreadState:
    """``ran`` and ``waited``: nanoseconds on a CPU and ready for one. ``switches``: how often it was scheduled."""

    __slots__ = ("call", "idle", "name", "ran", "state", "switches", "tid", "waited", "wchan")

    def __init__(self, *, tid: int, name: str, state: str, ran: int, waited: int, switches: int) -> None:
        self.tid = tid
        self.name = name
        self.state = state
        self.ran = ran
        self.waited = waited
        self.switches = switches
        self.idle: float | None = None
        self.call: Call | None = None
        self.wchan = ""


class ProcessState:
    """``threads`` has the main thread first. ``state`` is ``X`` for a process that has ended."""

    __slots__ = ("cpu", "read_bytes", "state", "threads", "tracer", "write_bytes")

    def __init__(
        self,
        *,
        state: str,
        cpu: float = 0.0,
        read_bytes: int = 0,
        write_bytes: int = 0,
        tracer: int = 0,
        threads: tuple[ThreadState, ...] = (),
    ) -> None:
        self.state = state
        self.cpu = cpu
        self.read_bytes = read_bytes
        self.write_bytes = write_bytes
        self.tracer = tracer
        self.threads = threads


# States in which a process must not be paused to read its stack: stopped, traced, uninterruptible.
STILL = frozenset("TtD")
GONE = ProcessState(state="X")


class IdleClock:
    """How long ago a thread last ran, from the time that the scheduler recorded (``se.exec_start``).

    That time is in the clock of the CPU on which the thread ran, and the clocks of CPUs drift apart by the time each
    spent in interrupts. So the clock is read on the same CPU: this thread moves there for a moment and reads its own
    ``se.exec_start``. Without /proc/PID/sched in the kernel, the result is None.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, float | None] = {}

    def idle(self, pid: int, tid: int, cpu: int) -> float | None:
        ran_at = _exec_start(f"/proc/{pid}/task/{tid}/sched")
        if ran_at is None:
            return None
        offset = self._offset(cpu)
        if offset is None:
            return None
        return max(0.0, _uptime() - offset - ran_at)

    def _offset(self, cpu: int) -> float | None:
        if cpu not in self._offsets:
            self._offsets[cpu] = self._measure(cpu)
        return self._offsets[cpu]

    @staticmethod
    def _measure(cpu: int) -> float | None:
        try:
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {cpu})
        except OSError:
            return None
        try:
            os.sched_yield()
            now = _exec_start("/proc/thread-self/sched")
            return None if now is None else _uptime() - now
        finally:
            os.sched_setaffinity(0, before)


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _exec_start(path: str) -> float | None:
    """The seconds in the ``se.exec_start`` line of a file."""
    try:
        with open(path) as file:
            for line in file:
                if line.startswith("se.exec_start"):
                    return float(line.rsplit(":", 1)[1]) / 1000
    except (OSError, ValueError):
        pass
    return None


def look(pid: int, clock: IdleClock | None = None) -> ProcessState:
    """Return the state of one process. Without a clock, idle times and calls are omitted: they cost more."""
    stat = _stat(f"/proc/{pid}/stat")
    if stat is None:
        return GONE
    read_bytes, write_bytes = _io(pid)
    threads = []
    try:
        tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda tid: (tid != pid, tid))
    except OSError:
        tids = []
    for tid in tids:
        thread = _thread(pid, tid, clock)
        if thread is not None:
            threads.append(thread)
    # utime, stime: fields 14 and 15 of stat.
    cpu = (int(stat[11]) + int(stat[12])) / _TICK
    return ProcessState(
        state=stat[0],
        cpu=cpu,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        tracer=tracer_of(pid),
        threads=tuple(threads),
    )


def _thread(pid: int, tid: int, clock: IdleClock | None) -> ThreadState | None:
    folder = f"/proc/{pid}/task/{tid}"
    raw = _read(f"{folder}/stat")
    if not raw:
        return None
    name = raw[raw.find("(") + 1 : raw.rfind(")")]
    stat = raw[raw.rfind(")") + 2 :].split()
    ran, waited, switches = run_time(pid, tid)
    thread = ThreadState(tid=tid, name=name, state=stat[0], ran=ran, waited=waited, switches=switches)
    if clock is not None:
        cpu = int(stat[36]) if len(stat) > 36 else 0
        thread.idle = clock.idle(pid, tid, cpu) if stat[0] != "R" else 0.0
        thread.wchan = _read(f"{folder}/wchan").strip("\0\n0")
        thread.call = syscalls.read(pid, tid, syscalls.table_for(), thread.idle, thread.wchan)
    return thread


def run_time(pid: int, tid: int) -> tuple[int, int, int]:
    """Return the nanoseconds that a thread ran and was ready to run, and how often it was scheduled."""
    fields = _read(f"/proc/{pid}/task/{tid}/schedstat").split()
    return (int(fields[0]), int(fields[1]), int(fields[2])) if len(fields) == 3 else (0, 0, 0)


def tracer_of(pid: int) -> int:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0


def process_state(pid: int) -> str:
    """The one-letter state, ``X`` when gone."""
    return state_and_start(pid)[0]


def thread_state(pid: int, tid: int) -> str:
    """The same of one thread."""
    stat = _stat(f"/proc/{pid}/task/{tid}/stat")
    return stat[0] if stat else "X"


def start_ticks(pid: int) -> int:
    """When the process started, in ticks since boot: with the pid, its identity. 0 when gone."""
    return state_and_start(pid)[1]


def state_and_start(pid: int) -> tuple[str, int]:
    """Both at once: of one and the same process."""
    stat = _stat(f"/proc/{pid}/stat")
    return (stat[0], int(stat[19])) if stat else ("X", 0)


def _io(pid: int) -> tuple[int, int]:
    values = {}
    for line in _read(f"/proc/{pid}/io").splitlines():
        key, _, value = line.partition(":")
        values[key] = int(value)
    return values.get("rchar", 0), values.get("wchar", 0)


def _stat(path: str) -> list[str] | None:
    """The fields from the third on. The name before them may contain blanks and parentheses."""
    raw = _read(path)
    return raw[raw.rfind(")") + 2 :].split() if raw else None


def _read(path: str) -> str:
    # os.read: a file object costs more than the read itself, and there are thousands of these files.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(handle, _MAX_PROC_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(handle)
