"""The system call that a thread is blocked in, on which file, and until when.

``/proc/PID/task/TID/syscall`` contains the number and the arguments. The deadline of a sleep, or of a wait with a
timeout, is read from the memory of the target: it distinguishes a rank that sleeps for another second from one that
sleeps for an hour.
"""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Callable

from breakranks.observe.process_memory import peek
from breakranks.snapshot.model import Call

# Only calls that block. Others are shown by their number.
_X86_64 = {
    0: "read", 1: "write", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select",
    34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
    47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 77: "ftruncate",
    2: "open", 4: "stat", 6: "lstat", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 202: "futex",
    230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat",
    270: "pselect6", 271: "ppoll", 275: "splice", 281: "epoll_pwait", 285: "fallocate", 288: "accept4",
    65: "semop", 220: "semtimedop", 240: "mq_open", 243: "mq_timedreceive", 242: "mq_timedsend",
    16: "ioctl", 5: "fstat", 3: "close", 82: "rename", 87: "unlink", 83: "mkdir", 21: "access",
    26: "msync", 162: "sync", 306: "syncfs", 295: "preadv", 296: "pwritev", 40: "sendfile", 441: "epoll_pwait2",
    426: "io_uring_enter", 208: "io_getevents", 219: "restart_syscall",
}  # fmt: skip
_AARCH64 = {
    63: "read", 64: "write", 67: "pread64", 68: "pwrite64", 65: "readv", 66: "writev", 72: "pselect6",
    73: "ppoll", 101: "nanosleep", 115: "clock_nanosleep", 203: "connect", 202: "accept", 206: "sendto",
    207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 260: "wait4", 25: "fcntl", 32: "flock", 82: "fsync",
    83: "fdatasync", 46: "ftruncate", 137: "rt_sigtimedwait", 133: "rt_sigsuspend", 98: "futex",
    22: "epoll_pwait", 95: "waitid", 56: "openat", 79: "newfstatat", 76: "splice", 47: "fallocate",
    242: "accept4", 193: "semop", 192: "semtimedop", 29: "ioctl", 80: "fstat", 57: "close", 227: "msync",
    81: "sync", 267: "syncfs", 71: "sendfile", 426: "io_uring_enter", 128: "restart_syscall",
}  # fmt: skip
_TABLES = {"x86_64": _X86_64, "aarch64": _AARCH64}

FILE_CALLS = frozenset(
    "read write pread64 pwrite64 readv writev preadv pwritev fcntl flock fsync fdatasync ftruncate fstat"
    " connect accept accept4 sendto recvfrom sendmsg recvmsg ioctl close fallocate splice sendfile"
    " epoll_wait epoll_pwait epoll_pwait2 syncfs".split()
)
# An interrupted call (by py-spy, for example) continues as restart_syscall with its old arguments. The kernel function
# in which it waits tells which call it was.
_RESTARTED = {"futex": "futex", "hrtimer_nanosleep": "clock_nanosleep", "do_nanosleep": "clock_nanosleep",
              "poll_schedule": "poll", "do_poll": "poll", "do_sys_poll": "poll"}  # fmt: skip
_PATH_CALLS = {"open": 0, "openat": 1, "stat": 0, "lstat": 0, "newfstatat": 1, "access": 0, "rename": 0,
               "unlink": 0, "mkdir": 0}  # fmt: skip
_MAX_PATH_BYTES = 4096
_READ_PATH_BYTES = 512  # by an agent
# By call: the arguments that are addresses of what is read here, each with its size.
_POINTERS: dict[str, tuple[tuple[int, int], ...]] = {
    "nanosleep": ((0, 16),), "clock_nanosleep": ((2, 16),), "futex": ((3, 16),), "select": ((1, 128), (4, 16)),
    "pselect6": ((1, 128), (4, 16)), "poll": ((0, 4),), "ppoll": ((0, 4), (2, 16)),
    "restart_syscall": ((0, 4), (2, 16), (3, 16)),
}  # fmt: skip
MemoryReader = Callable[[int, int], bytes]  # of an address and a size; no bytes where they cannot be read
_FUTEX_BITSET = 9
_FUTEX_REALTIME = 256
_TIMER_ABSTIME = 1
_MAX_FD = 1 << 24


def table_for(machine: str | None = None) -> dict[int, str]:
    return _TABLES.get(machine or os.uname().machine, {})


def parse(text: str, names: dict[int, str]) -> tuple[str, tuple[int, ...]] | None:
    """Return the name and the arguments in the one line of the file, or None if the thread runs.

    >>> parse("0 0x3 0x7f 0x10 0x0 0x0 0x0 0x7ffc 0x7f91", {0: "read"})
    ('read', (3, 127, 16, 0, 0, 0))
    """
    parts = text.split()
    if len(parts) < 7 or parts[0] in ("running", "-1"):
        return None
    try:
        number = int(parts[0])
        arguments = tuple(int(part, 16) for part in parts[1:7])
    except ValueError:
        return None
    return names.get(number, f"syscall {number}"), arguments


def read(pid: int, tid: int, names: dict[int, str], idle: float | None, wchan: str = "") -> Call | None:
    """Return the call that a thread is in now, or None if it runs or reading it is not permitted."""
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall") as file:
            text = file.read()
    except OSError:
        return None
    return call_of(pid, text, names, idle, wchan, functools.partial(peek, pid))


def call_of(
    pid: int, text: str, names: dict[int, str], idle: float | None, wchan: str, memory: MemoryReader
) -> Call | None:
    """Return the call in the text of such a file. ``memory`` reads from an address of the process."""
    parsed = parse(text, names)
    if parsed is None:
        return None
    name, arguments = parsed
    if name == "restart_syscall":
        name = next((call for start, call in _RESTARTED.items() if wchan.startswith(start)), name)
    return Call(
        name, _fd(memory, name, arguments), _left(memory, name, arguments, idle), _path(pid, memory, name, arguments)
    )


def are_hidden(pid: int) -> bool:
    """Whether the calls of a living process may not be read."""
    try:
        with open(f"/proc/{pid}/syscall"):
            return False
    except PermissionError:
        return True
    except OSError:
        return False


def pointers(names: dict[int, str]) -> tuple[str, ...]:
    """Return what is read from the memory of a process, as ``rank/thread_calls`` has it: NUMBER:ARGUMENT:SIZE."""
    return tuple(
        f"{number}:{argument}:{size}"
        for number, name in names.items()
        for argument, size in (*_POINTERS.get(name, ()), *_path_pointer(name))
    )


def _path_pointer(name: str) -> tuple[tuple[int, int], ...]:
    return ((_PATH_CALLS[name], _READ_PATH_BYTES),) if name in _PATH_CALLS else ()


def _path(pid: int, memory: MemoryReader, name: str, arguments: tuple[int, ...]) -> str:
    """The file that a call names by its path: opening a FIFO, or a file on a dead server, blocks."""
    index = _PATH_CALLS.get(name)
    if index is None:
        return ""
    # Read in small pieces: the path may end just before a page that is not mapped.
    found = b""
    while len(found) < _MAX_PATH_BYTES and b"\0" not in found:
        piece = memory(arguments[index] + len(found), 64 - (arguments[index] + len(found)) % 64)
        if not piece:
            break
        found += piece
    path = found.split(b"\0", 1)[0].decode(errors="replace")
    if path and not path.startswith("/"):
        try:
            return os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)
        except OSError:
            return path
    return path


def _fd(memory: MemoryReader, name: str, arguments: tuple[int, ...]) -> int:
    if name in FILE_CALLS and arguments[0] < _MAX_FD:
        return arguments[0]
    if name in ("poll", "ppoll") and arguments[1] == 1:
        data = memory(arguments[0], 4)
        return struct.unpack("i", data)[0] if data else -1
    if name in ("select", "pselect6") and 0 < arguments[0] <= 1024:
        return _lone_bit(memory, arguments[1], arguments[0])
    return -1


def _lone_bit(memory: MemoryReader, address: int, count: int) -> int:
    """The only descriptor in the read set of a select; -1 if there are none or several."""
    if not address:
        return -1
    data = memory(address, (count + 63) // 64 * 8)
    bits = int.from_bytes(data, "little") & ((1 << count) - 1)
    return bits.bit_length() - 1 if bits.bit_count() == 1 else -1


def _left(memory: MemoryReader, name: str, arguments: tuple[int, ...], idle: float | None) -> float | None:
    """Seconds until the call times out. For a relative timeout, the rest after ``idle`` seconds."""
    waited = idle or 0.0
    if name == "clock_nanosleep":
        clock, flags, address = arguments[:3]
        length = _timespec(memory, address)
        if length is None:
            return None
        if flags & _TIMER_ABSTIME:
            return max(0.0, length - time.clock_gettime(clock if clock in (0, 1, 7) else 1))
        return max(0.0, length - waited)
    if name == "futex":
        operation, address = arguments[1] & 0x7F, arguments[3]
        if not address or operation not in (0, _FUTEX_BITSET):
            return None
        length = _timespec(memory, address)
        if length is None:
            return None
        if operation == _FUTEX_BITSET:
            clock = time.CLOCK_REALTIME if arguments[1] & _FUTEX_REALTIME else time.CLOCK_MONOTONIC
            return max(0.0, length - time.clock_gettime(clock))
        return max(0.0, length - waited)
    if name in ("poll", "epoll_wait", "epoll_pwait"):
        index = 2 if name == "poll" else 3
        milliseconds = struct.unpack("i", struct.pack("I", arguments[index] & 0xFFFFFFFF))[0]
        return None if milliseconds < 0 else max(0.0, milliseconds / 1000 - waited)
    where = {"nanosleep": 0, "select": 4, "pselect6": 4, "ppoll": 2}.get(name)
    if where is None or not arguments[where]:
        return None
    length = _timespec(memory, arguments[where], micro=name == "select")
    return None if length is None else max(0.0, length - waited)


def _timespec(memory: MemoryReader, address: int, micro: bool = False) -> float | None:
    data = memory(address, 16)
    if not data:
        return None
    seconds, fraction = struct.unpack("qq", data)
    if seconds < 0 or not 0 <= fraction < 1_000_000_000:
        return None
    return float(seconds + fraction / (1_000_000 if micro else 1_000_000_000))
