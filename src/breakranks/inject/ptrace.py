"""ptrace of one thread at a time. However the tracer ends, the kernel detaches it and the thread keeps running.

All calls for one held thread must come from one OS thread: to the kernel, the tracer is a thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from typing import NamedTuple

from breakranks.observe.process_memory import Memory

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

_GETREGS, _SETREGS, _DETACH = 12, 13, 17
_GETREGSET, _SEIZE, _INTERRUPT, _GETSIGMASK, _SETSIGMASK, _GET_RSEQ = 0x4204, 0x4206, 0x4207, 0x420A, 0x420B, 0x420F
_XSTATE = 0x202
_EVENT_STOP = 128
_WALL = 0x40000000
_SIGTRAP = 5
_STOP_SECONDS = 0.5  # a thread that does not stop in this time is in an uninterruptible call
_CHECK_SECONDS = 0.01  # that one check takes at most, if this process runs
_MAX_XSTATE_BYTES = 65536

_LAYOUT = "<27Q"


class Registers(NamedTuple):
    """``struct user_regs_struct`` of the kernel, on x86-64."""

    r15: int
    r14: int
    r13: int
    r12: int
    rbp: int
    rbx: int
    r11: int
    r10: int
    r9: int
    r8: int
    rax: int
    rcx: int
    rdx: int
    rsi: int
    rdi: int
    orig_rax: int
    rip: int
    cs: int
    eflags: int
    rsp: int
    ss: int
    fs_base: int
    gs_base: int
    ds: int
    es: int
    fs: int
    gs: int

    @property
    def call(self) -> int:
        """The number of the system call that the thread is in; negative if it is in none."""
        return signed(self.orig_rax)

    @property
    def result(self) -> int:
        return signed(self.rax)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class ThreadNotStopped(Exception):
    """The thread cannot be stopped now. ``stopping``: a signal is about to stop its whole process."""

    def __init__(self, stopping: bool = False) -> None:
        super().__init__("stopping" if stopping else "busy")
        self.stopping = stopping


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def unsigned(value: int) -> int:
    return value & (1 << 64) - 1


def _call(request: int, tid: int, address: int = 0, data: object = None) -> None:
    if _ptrace(request, tid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _is_dead(pid: int, tid: int) -> bool:
    try:
        with open(f"/proc/{pid}/task/{tid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


class HeldThread:
    """One thread, stopped by ptrace: ``with HeldThread(pid, tid) as held: …``. At the end it resumes, with the
    registers that were set.

    Raises OSError if tracing is not permitted or the thread has ended, and ThreadNotStopped if it does not stop now.
    """

    def __init__(self, pid: int, tid: int) -> None:
        self.tid = tid
        self._pid = pid
        self._attached = False
        self._signal = 0
        _call(_SEIZE, tid)
        self._attached = True
        try:
            _call(_INTERRUPT, tid)
            self._wait()
            self._memory = Memory(pid, tid=tid, write=True)
        except BaseException:
            self._detach()
            raise

    def _wait(self) -> None:
        waited = pause = 0.0
        last = time.monotonic()
        # Wait only for stops: to reap a child of this process would take its exit status from its owner.
        while (got := self._stop()) is None:
            if pause and _is_dead(self._pid, self.tid):
                self._attached = False
                raise ProcessLookupError(errno.ESRCH, "ended")
            # Time in which this process itself did not run does not count: the thread may have stopped in it.
            now = time.monotonic()
            waited += min(now - last, pause + _CHECK_SECONDS)
            last = now
            if waited > _STOP_SECONDS:
                raise ThreadNotStopped
            time.sleep(pause)
            pause = min(pause + 0.00005, 0.002)
        event, number = got.si_status >> 8, got.si_status & 0x7F
        if event != _EVENT_STOP:
            # A signal came first. It is delivered at the detach.
            self._signal = number
            raise ThreadNotStopped
        if number != _SIGTRAP:
            raise ThreadNotStopped(stopping=True)

    def _stop(self) -> os.waitid_result | None:
        try:
            return os.waitid(os.P_PID, self.tid, os.WSTOPPED | os.WNOHANG | _WALL)
        except ChildProcessError:
            self._attached = False
            raise ProcessLookupError(errno.ESRCH, "ended") from None

    @property
    def own_tid(self) -> int:
        """The thread id in the PID namespace of the process."""
        with open(f"/proc/{self._pid}/task/{self.tid}/status") as file:
            return next((int(line.split()[-1]) for line in file if line.startswith("NSpid:")), self.tid)

    def registers(self) -> Registers:
        buffer = ctypes.create_string_buffer(struct.calcsize(_LAYOUT))
        _call(_GETREGS, self.tid, 0, ctypes.addressof(buffer))
        return Registers(*struct.unpack(_LAYOUT, buffer.raw))

    def set_registers(self, registers: Registers) -> None:
        buffer = ctypes.create_string_buffer(struct.pack(_LAYOUT, *registers))
        _call(_SETREGS, self.tid, 0, ctypes.addressof(buffer))

    def vector_state_size(self) -> int:
        """Bytes that ``xsave`` writes on this machine; 0 without ``xsave``."""
        buffer = ctypes.create_string_buffer(_MAX_XSTATE_BYTES)
        vector = _Vector(ctypes.addressof(buffer), len(buffer))
        try:
            _call(_GETREGSET, self.tid, _XSTATE, ctypes.addressof(vector))
        except OSError:
            return 0
        return int(vector.length)

    def signal_mask(self) -> int:
        mask = ctypes.c_uint64()
        _call(_GETSIGMASK, self.tid, 8, ctypes.addressof(mask))
        return mask.value

    def set_signal_mask(self, mask: int) -> None:
        _call(_SETSIGMASK, self.tid, 8, ctypes.addressof(ctypes.c_uint64(mask)))

    def has_signal(self) -> bool:
        """Whether a signal that is not blocked is pending for the thread."""
        masks = {}
        with open(f"/proc/{self._pid}/task/{self.tid}/status") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key in ("SigPnd", "ShdPnd", "SigBlk"):
                    masks[key] = int(value, 16)
        return bool((masks["SigPnd"] | masks["ShdPnd"]) & ~masks["SigBlk"])

    def in_restartable_sequence(self) -> bool:
        """Whether the thread may be in a restartable sequence (rseq), which the kernel aborts if it is interrupted."""
        buffer = ctypes.create_string_buffer(24)
        try:
            _call(_GET_RSEQ, self.tid, 24, ctypes.addressof(buffer))
        except OSError:
            return False  # a kernel before 5.13, or none is registered
        at = struct.unpack_from("<Q", buffer.raw)[0]
        return bool(at) and any(self.read(at + 8, 8))

    def read(self, address: int, size: int) -> bytes:
        return self._memory.read(address, size)

    def read_up_to(self, address: int, size: int) -> bytes:
        return self._memory.read_up_to(address, size)

    def write(self, address: int, data: bytes) -> None:
        self._memory.write(address, data)

    def _detach(self) -> None:
        if self._attached:
            self._attached = False
            try:
                _call(_DETACH, self.tid, 0, self._signal)
            except OSError:
                pass  # ended, or not stopped: then the kernel detaches when the tracing OS thread ends

    def __enter__(self) -> HeldThread:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._detach()
        finally:
            self._memory.close()
