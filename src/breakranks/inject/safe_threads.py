"""Which thread may be borrowed for an instant: only one that provably holds no lock that the stub needs.

The stub calls ``pthread_create`` in it, which takes the locks of glibc for stacks and memory. So the thread must not be
in that code itself: it must be blocked in a system call that this code never makes, and nothing on its stack may
return into the allocator, the loader, ``fork`` or a signal handler.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from breakranks.inject.elf import LoadedLibrary
from breakranks.inject.memory_map import Maps
from breakranks.inject.ptrace import HeldThread, Registers, unsigned
from breakranks.inject.stub import THREAD_NAME
from breakranks.inject.target_process import TargetProcess

_READ, _POLL, _SELECT, _EPOLL_WAIT, _EPOLL_PWAIT, _FUTEX = 0, 7, 23, 232, 281, 202
# An interrupted nanosleep, poll or futex with a timeout becomes this call. The locks of glibc wait without a timeout.
_RESTART_SYSCALL = 219
# Calls that wait, among them pause, nanosleep, accept, recv*, wait*, semop, msgrcv, fcntl and flock, sigtimedwait.
_WAITING = frozenset({_READ, _POLL, 19, _SELECT, 34, 35, 43, 45, 47, 61, 65, 70, 72, 73, 128, 208, 220, 230, 247, 270,
                      271, 288, 295, 299, 441, _EPOLL_WAIT, _EPOLL_PWAIT, _RESTART_SYSCALL})  # fmt: skip
# Calls that wait for a reader. They come last, since an interrupted write may have written a part.
_WRITING = frozenset({1, 20, 44, 46})
# Condition variables, semaphores and joins use this. The locks of glibc, such as that of malloc, use plain FUTEX_WAIT.
_FUTEX_WAIT_BITSET = 9
_FUTEX_COMMAND = 0x7F

_RESTART_BLOCK = 516
_RESTARTED = frozenset({512, 513, 514, _RESTART_BLOCK})
_ALWAYS_RESTARTED = 513  # ERESTARTNOINTR: the call is restarted even if a signal was handled
_EINTR = 4
_SYSCALL = b"\x0f\x05"
_LONG_POLL_MILLISECONDS = 1000
_USER_CODE = 0x33

_MAX_STACK_BYTES = 1 << 20
_MALLOC = ("malloc", "free", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign", "valloc", "pvalloc",
           "malloc_trim", "mallopt", "mallinfo", "mallinfo2")  # fmt: skip
_OTHER_FUNCTIONS = ("fork", "_Fork", "vfork", "posix_spawn", "posix_spawnp", "dl_iterate_phdr", "pthread_create",
                    "pthread_exit", "system", "popen", "exit", "quick_exit", "abort")  # fmt: skip
_PENDING = ("Py_AddPendingCall", "_PyEval_AddPendingCall", "Py_MakePendingCalls", "_PyEval_MakePendingCalls",
            "make_pending_calls", "_make_pending_calls", "_push_pending_call", "_pop_pending_call",
            "_PyEval_SignalAsyncExc", "_Py_FinishPendingCalls")  # fmt: skip
_LOCKS = (
    "PyThread_acquire_lock",
    "PyThread_acquire_lock_timed",
    "PyThread_release_lock",
    "PyMutex_Lock",
    "PyMutex_Unlock",
)
_INNERMOST_BYTES = 1024
_C_LIBRARY = ("libc.", "libc-", "libpthread", "ld-")
AT_WORK = "it is running"


class DoubtfulReason(str):
    """Why a thread is unsafe, as far as the words on its stack show. A stale word can be the cause."""

    __slots__ = ()


class ThreadCandidate(NamedTuple):
    """A thread that seems to wait. ``preference``: smaller is better."""

    tid: int
    preference: tuple[int, int]


def candidates(pid: int, maps: Maps) -> list[ThreadCandidate]:
    """Threads that seem to wait, the best first: others before the main one, shallow stacks before deep ones."""
    found = []
    for tid in map(int, os.listdir(f"/proc/{pid}/task")):
        candidate = _candidate(pid, tid, maps)
        if candidate is not None:
            found.append(candidate)
    return sorted(found, key=lambda candidate: candidate.preference)


def _candidate(pid: int, tid: int, maps: Maps) -> ThreadCandidate | None:
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall") as file:
            fields = file.read().split()
        with open(f"/proc/{pid}/task/{tid}/stat") as file:
            name, _, rest = file.read().rpartition(")")
    except OSError:
        return None
    stat = rest.split()
    if name.endswith(f"({THREAD_NAME}"):
        return None  # an injected thread that waits for the GIL
    if len(fields) < 9 or stat[0] != "S" or stat[38] != "0":
        return None  # running or ending, or of real-time priority, which a new thread would inherit
    call, arguments, stack = int(fields[0]), [int(field, 16) for field in fields[1:7]], int(fields[7], 16)
    if not waits(call, arguments[1]):
        return None
    mapping = maps.at(stack)
    depth = mapping.end - stack if mapping is not None else _MAX_STACK_BYTES
    long_poll = call in (_EPOLL_WAIT, _EPOLL_PWAIT) and signed32(arguments[3]) > _LONG_POLL_MILLISECONDS
    return ThreadCandidate(tid, (4 * (call in _WRITING) + 2 * (tid == pid) + long_poll, depth))


def waits(call: int, second: int) -> bool:
    """Whether a thread in this system call waits for another thread or process, and holds no lock of glibc."""
    if call == _FUTEX:
        return second & _FUTEX_COMMAND == _FUTEX_WAIT_BITSET
    return call in _WAITING or call in _WRITING


def signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def resumed(registers: Registers, before: bytes) -> Registers:
    """The registers with which a stopped thread resumes as if it had not been stopped.

    A system call that the stop interrupted is made again. The kernel does that itself, but not if the thread runs
    something else first, and never for calls that return EINTR (epoll_wait, semop, a socket with a timeout).
    ``before``: the two bytes before the instruction pointer.
    """
    resumed_registers = registers._replace(orig_rax=unsigned(-1))
    if registers.call < 0 or before != _SYSCALL:
        return resumed_registers
    code = -registers.result
    if code in _RESTARTED:
        number = _RESTART_SYSCALL if code == _RESTART_BLOCK else registers.call
    elif code == _EINTR:
        # A restarted call waits its full timeout again. A program with a long timeout must handle EINTR anyway, since
        # even SA_RESTART does not prevent it for epoll_wait. Other calls are restarted, and may wait longer.
        if registers.call in (_EPOLL_WAIT, _EPOLL_PWAIT) and signed32(registers.r10) > _LONG_POLL_MILLISECONDS:
            return resumed_registers
        number = registers.call
    else:
        return resumed_registers
    return resumed_registers._replace(rip=registers.rip - 2, rax=number)


def made_again(registers: Registers, resumed_registers: Registers) -> bool:
    return resumed_registers.rip != registers.rip


def is_cut_short(registers: Registers) -> bool:
    """Whether the system call is about to return EINTR."""
    return registers.call >= 0 and -registers.result == _EINTR


def ended_by(registers: Registers, resumed_registers: Registers, caught: int, mask: int) -> int:
    """The signals after which the call must return EINTR instead of being made again: those with a handler."""
    if not made_again(registers, resumed_registers) or -registers.result == _ALWAYS_RESTARTED:
        return 0
    return caught & ~mask


def prepare(target: TargetProcess, pending: bool = False) -> None:
    """Read the symbols that the checks need, before a thread is stopped for them."""
    if pending:
        _ranges(target.python, _PENDING + _LOCKS)
    else:
        _ranges(target.libc, _functions(target.libc))


def unsafe(held: HeldThread, registers: Registers, target: TargetProcess) -> str:
    """Why ``pthread_create`` may not be called in a stopped thread; empty if it may."""
    if not is_waiting(held, registers):
        return AT_WORK
    return on_stack(held, registers, target)


def is_waiting(held: HeldThread, registers: Registers) -> bool:
    return (
        registers.cs == _USER_CODE
        and registers.call >= 0
        and (-registers.result in _RESTARTED or -registers.result == _EINTR)
        and waits(registers.call, registers.rsi)
        and held.read(registers.rip - 2, 2) == _SYSCALL
    )


def on_stack(held: HeldThread, registers: Registers, target: TargetProcess) -> str:
    """Why a thread must not be borrowed, from every word of its stack that may be a return address; empty if it may.

    This errs on the safe side only: a stale word of an earlier call also counts.
    """
    mapping = target.maps.at(registers.rsp)
    if mapping is None:
        return "its stack is not known"
    end = mapping.end
    if registers.rsp < registers.fs_base < end:
        end = registers.fs_base  # glibc keeps the thread's control block at the top of its stack
    if end - registers.rsp > _MAX_STACK_BYTES:
        return DoubtfulReason("its stack is too deep to search")
    words = _words(held, registers.rsp, end - registers.rsp)
    if target.signal_return and target.signal_return in words:
        return DoubtfulReason("it is in a signal handler")
    for library in target.allocators:
        if any(library.holds(word) and library.returns_to(word) for word in words):
            return DoubtfulReason("it allocates")
    loader = target.loader
    if loader is None:
        return "its dynamic loader is not known"
    if any(loader.holds(word) and loader.returns_to(word) for word in words) and _loads(held, loader):
        return "it is loading a library"
    libc = target.libc
    ranges = _ranges(libc, _functions(libc))
    for word in words:
        if libc.holds(word) and (name := _within(word, ranges)) and libc.returns_to(word):
            return DoubtfulReason(f"it is in {name}")
    return ""


def is_doubtful(why: str) -> bool:
    """Whether an exact unwinding of the stack may find the thread safe."""
    return isinstance(why, DoubtfulReason)


def _functions(libc: LoadedLibrary) -> tuple[str, ...]:
    """The functions of libc in which a thread is unsafe.

    glibc 2.34, which includes libpthread, has no malloc hooks any more: malloc cannot wait in foreign code.
    """
    return _OTHER_FUNCTIONS if libc.address("pthread_create") else _MALLOC + _OTHER_FUNCTIONS


def _loads(held: HeldThread, loader: LoadedLibrary) -> bool:
    """Whether a thread holds a lock of the loader, as it does in dlopen and dl_iterate_phdr.

    A return address into the loader may be stale: select.select() has 25 KB of locals, most of them never written.
    The offsets of the locks differ by version, so any words of their layout count: locked, count, owner, users,
    recursive.
    """
    data = loader.elf.find("_rtld_global")
    if data is None:
        return True
    own = held.own_tid
    words = struct.unpack(f"<{data.size // 4}I", held.read(data.value + loader.bias, data.size & -4))
    return any(
        word == own and words[at - 2] and words[at - 1] and words[at + 2 : at + 3] == (1,)
        for at, word in enumerate(words)
        if at >= 2
    )


def unsafe_anywhere(held: HeldThread, registers: Registers, target: TargetProcess) -> str:
    """Why ``Py_AddPendingCall`` may not be called in a thread that is stopped at any instruction."""
    if registers.cs != _USER_CODE:
        return "it does not run 64-bit user code"
    at = target.maps.at(registers.rip)
    if at is None or not at.file[1]:
        return "it runs code that belongs to no file"  # the vdso, a JIT compiler's code, the stub of another tool
    if held.in_restartable_sequence():
        return "it is in a restartable sequence"
    # These functions hold its lock for a few instructions, in which they call only locks of Python and of the C
    # library. A thread that runs any other code does not hold the lock, whatever stale words are on its stack.
    inside = target.python.holds(registers.rip) or at.name.startswith(_C_LIBRARY)
    words = _words(held, registers.rsp, _INNERMOST_BYTES) if inside else frozenset()
    ranges = _ranges(target.python, _PENDING + _LOCKS)
    for word in {registers.rip, *words}:
        name = _within(word, ranges)
        if name and (word == registers.rip or target.python.returns_to(word)):
            return f"it is in {name}"
    mapping = target.maps.at(registers.rsp)
    if mapping is None or "w" not in mapping.flags:
        return "its stack is not known"
    return ""


def _words(held: HeldThread, address: int, size: int) -> frozenset[int]:
    address = address + 7 & -8  # the stack pointer may be unaligned inside a function; return addresses are aligned
    data = held.read_up_to(address, size)
    return frozenset(struct.unpack(f"<{len(data) // 8}Q", data[: len(data) & -8]))


def _ranges(library: LoadedLibrary, names: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """The address ranges of these functions, including parts that the compiler split off."""
    return [
        (symbol.value + library.bias, symbol.value + library.bias + symbol.size, name)
        for name, symbol in library.elf.everywhere(names)
    ]


def _within(address: int, ranges: list[tuple[int, int, str]]) -> str:
    return next((name for start, end, name in ranges if start <= address < end), "")
