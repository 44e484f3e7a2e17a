"""Send a thread of a process through the stub, and leave no trace of it.

There are two ways. The first borrows a thread that provably waits, to start the injected thread. The second is used
if no thread waits: the main thread, at any instruction, adds a pending call, which Python runs between two bytecodes,
where starting a thread is safe. Either way the injected Python code runs in a thread of its own, under the ordinary
rules of the GIL.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from breakranks.inject import memory_map, safe_threads, stub
from breakranks.inject.inject_errors import InjectRefused, ProcessGone
from breakranks.inject.ptrace import HeldThread, Registers, ThreadNotStopped
from breakranks.inject.target_process import CodeCave, TargetProcess
from breakranks.observe import native_frames, ptrace_permissions
from breakranks.observe.process_memory import Memory, peek
from breakranks.observe.process_state import process_state, tracer_of

_MAX_CANDIDATES = 8
_MAX_TRIES = 20
_PAUSE_SECONDS = 0.003
_KCMP, _KCMP_VM = 312, 1
_UNSAFE_NAMES = ("malloc", "calloc", "realloc", "free", "_int_", "_dl_", "dl_", "dlopen", "__restore_rt", "fork",
                 "__libc_fork", "vfork", "posix_spawn", "__run_exit_handlers", "exit", "abort", "arena_")  # fmt: skip
Check = Callable[[HeldThread, Registers, TargetProcess], str]


class HijackedThread(NamedTuple):
    """A thread that was sent through the stub. ``stack``: its stack pointer before."""

    pid: int
    tid: int
    pending: bool
    stack: int
    block: int
    head: bytes
    cave: CodeCave


def enter(target: TargetProcess, source: str, otherwise: Callable[[], bool] = lambda: False) -> HijackedThread | None:
    """Make the process run ``source`` in a new thread; raise InjectRefused if that is not possible now.

    ``otherwise`` is tried if no thread waits, before the main thread is interrupted. The result is None if it
    succeeded.
    """
    pid = target.pid
    content = stub.pages(target.functions, source, False)
    _check_process(pid)
    reasons: dict[int, str] = {}
    why = ""
    try:
        safe_threads.prepare(target)
        for attempt in range(_MAX_TRIES):
            found = _borrow(target, content, reasons)
            if found is not None:
                return found
            if not attempt and safe_threads.is_doubtful(reasons.get(pid, "")):
                found = _borrow_unwound(target, content)
                if found is not None:
                    return found
            if not attempt and otherwise():
                return None
            sent = _interrupt(target, source)
            if isinstance(sent, HijackedThread):
                return sent
            why = sent
            time.sleep(_PAUSE_SECONDS)
    except ProcessLookupError as error:
        raise ProcessGone(pid) from error
    raise InjectRefused(
        f"no thread of process {pid} can run injected code safely now: the main thread: {why}"
        + "".join(f"; thread {tid}: {reason}" for tid, reason in reasons.items()),
        "Try again in a moment.",
    )


def again(target: TargetProcess, source: str, *, pending: bool) -> HijackedThread | None:
    """Try a second time, the other way. If both injected threads run, the first takes the request.

    If a pending call has not run, a thread may be waiting by now: one that is about to wait looks busy. If an injected
    thread does not get the GIL, a pending call makes the main thread release it.
    """
    fresh = target._replace(maps=memory_map.read(target.pid))
    if not pending:
        return _borrow(fresh, stub.pages(target.functions, source, False), {})
    sent = _interrupt(fresh, source)
    return sent if isinstance(sent, HijackedThread) else None


def _interrupt(target: TargetProcess, source: str) -> HijackedThread | str:
    safe_threads.prepare(target, pending=True)
    content = stub.pages(target.functions, source, True)
    return _send(target, target.pid, content, safe_threads.unsafe_anywhere, pending=True)


def _borrow(target: TargetProcess, content: bytes, reasons: dict[int, str]) -> HijackedThread | None:
    """Send the first waiting thread that may be borrowed; record in ``reasons`` why the others may not."""
    reasons.clear()
    for candidate in safe_threads.candidates(target.pid, target.maps)[:_MAX_CANDIDATES]:
        found = _send(target, candidate.tid, content, safe_threads.unsafe)
        if isinstance(found, HijackedThread):
            return found
        reasons[candidate.tid] = found
    return None


def _check_process(pid: int) -> None:
    """Raise InjectRefused if the process is stopped, traced or between vfork and exec, ProcessGone if it has ended."""
    state = process_state(pid)
    if state in "XZ":
        raise ProcessGone(pid)
    if state == "T":
        raise InjectRefused(f"process {pid} is stopped", f"Continue it first: kill -CONT {pid}")
    tracer = tracer_of(pid)
    if state == "t" or tracer:
        raise InjectRefused.because(ptrace_permissions.denied(pid))
    status = _status(pid, pid)
    libc = ctypes.CDLL(None)
    # Between vfork and exec, a process runs in the memory of its parent.
    if libc.syscall(_KCMP, pid, int(status.get("PPid", "0")), _KCMP_VM, 0, 0) == 0:
        raise InjectRefused(f"process {pid} still shares its memory with its parent (vfork)", "Try again.")


def _status(pid: int, tid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/task/{tid}/status") as file:
            pairs = (line.partition(":") for line in file)
            return {key: value.strip() for key, _, value in pairs}
    except OSError:
        return {}


def _confined(pid: int, tid: int) -> str:
    """Why the kernel may not let this thread run the stub; empty if it may."""
    status = _status(pid, tid)
    if "shstk" in status.get("x86_Thread_features", ""):
        return "it has a shadow stack"
    if status.get("Seccomp") == "1":
        return "it is confined (seccomp)"
    if tid != pid and status.get("Seccomp_filters") != _status(pid, pid).get("Seccomp_filters"):
        return "it is more confined than the main thread (seccomp)"
    return ""


def _send(target: TargetProcess, tid: int, content: bytes, check: Check, pending: bool = False) -> HijackedThread | str:
    """Send one thread through the stub, or return why it cannot be sent. It is stopped for a millisecond or two."""
    pid = target.pid
    caught = int(_status(pid, tid).get("SigCgt", "0"), 16) & stub.BLOCKED
    try:
        with HeldThread(pid, tid) as held:
            registers = held.registers()
            resumed = safe_threads.resumed(registers, held.read(registers.rip - 2, 2))
            why = check(held, registers, target) or _confined(pid, tid)
            size = held.vector_state_size()
            stack = target.maps.at(registers.rsp)
            if not size:
                why = why or "the processor has no xsave"
            elif stack is None or registers.rsp - stack.start < stub.room(content, size):
                why = why or "its stack is almost used up"
            if why:
                _resume_unchanged(held, registers, resumed)
                return why
            mask = held.signal_mask()
            plan = stub.plan(
                registers,
                resumed,
                stub=target.cave.address,
                content=content,
                pending=pending,
                call=target.functions["Py_AddPendingCall" if pending else "pthread_create"],
                errno_location=target.functions["__errno_location"],
                is_initialized=target.functions["Py_IsInitialized"],
                mask=mask,
                ends_call=safe_threads.ended_by(registers, resumed, caught, mask),
                vector_size=size,
            )
            if not target.cave.has_stub:
                held.write(target.cave.address, stub.STUB)
            held.write(plan.address, plan.data)
            # This call alone changes the thread. Before it nothing has happened; after it the thread needs no tracer.
            held.set_registers(plan.registers)
            held.set_signal_mask(stub.BLOCKED)
            return HijackedThread(
                pid=pid,
                tid=tid,
                pending=pending,
                stack=registers.rsp,
                block=plan.block,
                head=plan.head,
                cave=target.cave,
            )
    except ThreadNotStopped as error:
        if error.stopping:
            raise InjectRefused(f"process {pid} is being stopped", f"Continue it first: kill -CONT {pid}") from None
        return "it cannot be stopped now"
    except ProcessLookupError:
        if process_state(pid) in "XZ":
            raise
        return "it ended"
    except PermissionError as error:
        time.sleep(_PAUSE_SECONDS)
        if process_state(pid) in "XZ":  # the kernel also refuses a process that is about to end
            raise ProcessGone(pid) from error
        raise InjectRefused.because(ptrace_permissions.denied(pid)) from error


def _resume_unchanged(held: HeldThread, registers: Registers, resumed: Registers) -> None:
    """Prepare a thread that was only inspected for its resume.

    The kernel restarts an interrupted call, or ends it if a signal came since. Only calls that return EINTR without
    any signal, as epoll_wait does, must be restarted here.
    """
    if safe_threads.is_cut_short(registers) and safe_threads.made_again(registers, resumed) and not held.has_signal():
        held.set_registers(resumed)


def _borrow_unwound(target: TargetProcess, content: bytes) -> HijackedThread | None:
    """Borrow the main thread if an exact unwinding of its stack finds it safe.

    This is the last resort: it takes 0.2 s, and pystack stops the whole process, which ends an epoll_wait with EINTR.
    """
    pid = target.pid
    before = _pointers(pid, pid)
    stacks = native_frames.sweep([pid], deadline=3.0)[0][pid]
    frames = next((thread.frames for thread in stacks.threads if thread.tid == pid), ())
    loader = target.loader.path if target.loader is not None else "ld-linux"
    if not any(frame.native for frame in frames) or before is None:
        return None
    for frame in frames:
        if frame.native and (frame.function.startswith(_UNSAFE_NAMES) or frame.file.endswith(loader)):
            return None

    def check(held: HeldThread, registers: Registers, target: TargetProcess) -> str:
        same = (registers.rsp, registers.rip) == before
        return "" if same and safe_threads.is_waiting(held, registers) else "it moved"

    found = _send(target, pid, content, check)
    return found if isinstance(found, HijackedThread) else None


def _pointers(pid: int, tid: int) -> tuple[int, int] | None:
    """Stack and instruction pointer of a thread that is blocked; None if it runs or has ended."""
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall") as file:
            fields = file.read().split()
    except OSError:
        return None
    return (int(fields[-2], 16), int(fields[-1], 16)) if len(fields) > 2 else None


def outcome(visit: HijackedThread) -> int | None:
    """What the call in the borrowed thread returned; None if that cannot be read any more."""
    now = peek(visit.pid, visit.block, len(visit.head))
    return stub.outcome(visit.head, now) if now else None


def leave(visits: Sequence[HijackedThread], *, until: float) -> bool:
    """Restore the bytes of the library once all threads have provably left the stub.

    Return False if the stub stays there, which is harmless.
    """
    pid, cave = visits[0].pid, visits[0].cave
    if cave.has_stub:
        return False  # left by a breakranks that was killed: its thread may still be in the stub
    inside = list(visits)
    pause = 0.0005
    while True:
        try:
            memory = Memory(pid, write=True)
        except OSError:
            return False  # the process has ended
        try:
            inside = [visit for visit in inside if not _has_left(visit, memory)]
            if not inside:
                return _restore(memory, cave)
        except (OSError, ThreadNotStopped):
            pass  # the thread cannot be inspected now, or has ended
        finally:
            memory.close()
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _restore(memory: Memory, cave: CodeCave) -> bool:
    try:
        memory.write(cave.address, cave.old)
    except ProcessLookupError:
        return False  # the process has ended
    return True


def _has_left(visit: HijackedThread, memory: Memory) -> bool:
    if not os.path.exists(f"/proc/{visit.pid}/task/{visit.tid}"):
        return True
    pointers = _pointers(visit.pid, visit.tid)
    if pointers is not None:
        return _is_outside(visit, pointers, memory.read)
    with HeldThread(visit.pid, visit.tid) as held:
        registers = held.registers()
        resumed = safe_threads.resumed(registers, held.read(registers.rip - 2, 2))
        _resume_unchanged(held, registers, resumed)
        return _is_outside(visit, (registers.rsp, registers.rip), held.read)


def _is_outside(visit: HijackedThread, pointers: tuple[int, int], read: Callable[[int, int], bytes]) -> bool:
    """Whether a thread is neither in the stub nor in a function that returns to it."""
    stack, instruction = pointers
    if visit.cave.holds(instruction):
        return False
    if stack >= visit.stack:
        return True
    size = visit.stack - stack & -8
    words = struct.unpack(f"<{size // 8}Q", read(stack, size)) if size < 1 << 20 else (visit.cave.address,)
    return not any(visit.cave.holds(word) for word in words)
