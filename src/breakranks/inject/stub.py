"""The machine code that runs in a process, and its layout in memory.

A thread of the process is sent through ``STUB``. The stub is always the same bytes and needs no tracer: it calls one
function and restores everything itself, so that the injector may be killed at any instant. Its data is a block on the
stack of the thread (offsets from rbx):

     0 signals to block   8 its mask before   16 those that end a system call   24 scratch
    32 the page; at the end the result   40 a mark, inverted at the end   48 errno   52 the value returned
    56 the way: 0 a thread, 1 a pending call   64 the offset in the pages at which it begins
    72 the new thread's id; for a pending call the address of Py_IsInitialized
    80 the content of the pages

The stub copies ``PAGE`` into a page of its own: the code of the thread that runs the injected Python code. ``PENDING``
goes into a second page: the pending call that starts that thread. The main thread then waits for it for a short time
without the GIL. Otherwise a program that releases the GIL often, for an instant, would never give it to another
thread. Each unmaps its own page. tests/unit/test_stub.py assembles all three again from the text in this file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from breakranks.inject.ptrace import Registers, unsigned

STUB_TEXT = """
    mov eax, 14                       # rt_sigprocmask: no signal while the stub runs, and none in the new thread
    mov edi, 2
    mov rsi, rbx
    xor edx, edx
    mov r10d, 8
    syscall
    mov eax, -1                       # every vector and floating point register
    mov edx, eax
    xsave64 [rbp]
    cld
    mov eax, 9                        # mmap: a page for the thread, and one more for a pending call
    xor edi, edi
    mov esi, [rbx+64]
    add esi, 4096
    mov edx, 3
    mov r10d, 0x22
    mov r8, -1
    xor r9d, r9d
    syscall
    cmp rax, -4096
    ja done
    mov [rbx+32], rax
    mov rdi, rax
    lea rsi, [rbx+80]
    mov rcx, r13
    rep movsb
    mov rdi, rax                      # mprotect: executable, not writable
    mov esi, [rbx+64]
    add esi, 4096
    mov edx, 5
    mov eax, 10
    syscall
    test eax, eax
    jnz unmap
    call r15                          # __errno_location()
    mov ecx, [rax]
    mov [rbx+48], ecx
    cmp qword ptr [rbx+56], 0
    je thread
    call [rbx+72]                     # Py_IsInitialized: called here, in the only thread that could change it
    test eax, eax
    mov eax, -3
    jz unmap
    mov rsi, [rbx+32]                 # Py_AddPendingCall(rdi, rsi)
    mov rdi, rsi
    add rdi, [rbx+64]
    jmp go
thread:
    mov rcx, [rbx+32]                 # pthread_create(rdi, rsi, rdx, rcx)
    mov rdx, rcx
    add rdx, [rbx+64]
    lea rdi, [rbx+72]
    xor esi, esi
go:
    call r14
    mov [rbx+52], eax
    call r15
    mov ecx, [rbx+48]
    mov [rax], ecx
    mov eax, [rbx+52]
    test eax, eax                     # from here on the page may be unmapped, by the new thread
    jz done
unmap:
    cdqe
    push rax
    mov rdi, [rbx+32]
    mov esi, [rbx+64]
    add esi, 4096
    mov eax, 11
    syscall
    pop rax
done:
    mov [rbx+32], rax
    mov eax, -1
    mov edx, eax
    xrstor64 [rbp]
    mov eax, 127                      # rt_sigpending: did a signal come that ends the system call?
    lea rdi, [rbx+24]
    mov esi, 8
    syscall
    mov rax, [rbx+24]
    and rax, [rbx+16]
    jz back
    mov qword ptr [r12+112], -4       # then the call is not restarted but returns EINTR, as it would have
    add qword ptr [r12+128], 2
back:
    not qword ptr [rbx+40]
    mov eax, 14
    mov edi, 2
    lea rsi, [rbx+8]
    xor edx, edx
    mov r10d, 8
    syscall
    mov rsp, r12
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    popfq
    ret 128                           # over the red zone, to the old instruction
"""

PAGE_TEXT = """
    push rbx                          # the thread: rdi is the page
    mov rbx, rdi
    mov eax, 157                      # prctl: its name
    mov edi, 15
    lea rsi, [rbx+0x160]
    syscall
    cmp dword ptr [rbx+0x16c], 0      # a pending call joins or detaches the thread that it started
    jne joined
    call [rbx+0x100]                  # pthread_self
    mov rdi, rax
    call [rbx+0x108]                  # pthread_detach
joined:
    call [rbx+0x110]                  # Py_IsInitialized
    test eax, eax
    jz out
    push r12
    push r13
    call [rbx+0x118]                  # PyGILState_Ensure
    mov r12d, eax
    call [rbx+0x120]                  # PyDict_New
    mov r13, rax
    test rax, rax
    jz release
    lea rdi, [rbx+0x170]
    mov esi, 257                      # Py_file_input
    mov rdx, r13
    mov rcx, r13
    xor r8d, r8d
    call [rbx+0x128]                  # PyRun_StringFlags
    mov rdi, rax
    test rax, rax
    jnz ran
    call [rbx+0x130]                  # PyErr_Clear
    xor edi, edi
ran:
    call [rbx+0x138]                  # Py_DecRef
    mov rdi, r13
    call [rbx+0x138]
release:
    mov edi, r12d
    call [rbx+0x140]                  # PyGILState_Release
    pop r13
    pop r12
out:
    mov rdi, rbx
    mov esi, 4096
    mov rax, [rbx+0x148]              # munmap returns to the end of the thread, not to the page
    pop rbx
    jmp rax
"""

PENDING_TEXT = """
    push rbx                          # the pending call: rdi is the thread's page, this is the next one
    push r12
    sub rsp, 40                       # 0: the thread's id, 16: the end of the wait
    lea rbx, [rdi+4096]
    mov rcx, rdi
    mov rdx, rdi
    xor esi, esi
    mov rdi, rsp
    call [rbx+0x100]                  # pthread_create
    test eax, eax
    jnz failed
    call [rbx+0x108]                  # PyEval_SaveThread
    mov r12, rax
    mov eax, 228                      # clock_gettime(CLOCK_REALTIME)
    xor edi, edi
    lea rsi, [rsp+16]
    syscall
    mov rax, [rsp+24]
    add rax, [rbx+0x128]
    cmp rax, 1000000000
    jb short_of_a_second
    sub rax, 1000000000
    inc qword ptr [rsp+16]
short_of_a_second:
    mov [rsp+24], rax
    mov rdi, [rsp]
    xor esi, esi
    lea rdx, [rsp+16]
    call [rbx+0x110]                  # pthread_timedjoin_np
    test eax, eax
    jz joined
    mov rdi, [rsp]
    call [rbx+0x118]                  # pthread_detach
joined:
    mov rdi, r12
    call [rbx+0x120]                  # PyEval_RestoreThread
    jmp out
failed:
    lea rdi, [rbx-4096]
    mov esi, 4096
    mov eax, 11                       # munmap: the page of the thread that did not start
    syscall
out:
    mov rdi, rbx
    mov esi, 4096
    mov rax, [rbx+0x130]              # munmap returns 0 to Python, not to the page
    add rsp, 40
    pop r12
    pop rbx
    jmp rax
"""

STUB = bytes.fromhex(
    "b80e000000bf020000004889de31d241ba080000000f05b8ffffffff89c2480fae6500fcb80900000031ff8b734081c6"
    "00100000ba0300000041ba2200000049c7c0ffffffff4531c90f05483d00f0ffff0f8792000000488943204889c7488d"
    "73504c89e9f3a44889c78b734081c600100000ba05000000b80a0000000f0585c0754e41ffd78b08894b3048837b3800"
    "7419ff534885c0b8fdffffff7433488b73204889f748037b40eb11488b4b204889ca48035340488d7b4831f641ffd689"
    "433441ffd78b4b3089088b433485c07418489850488b7b208b734081c600100000b80b0000000f055848894320b8ffff"
    "ffff89c2480fae6d00b87f000000488d7b18be080000000f05488b431848234310741249c7442470fcffffff49838424"
    "800000000248f75328b80e000000bf02000000488d730831d241ba080000000f054c89e4415f415e415d415c415b415a"
    "415941585d5f5e5a595b589dc28000"
)
PAGE = bytes.fromhex(
    "534889fbb89d000000bf0f000000488db3600100000f0583bb6c01000000750fff93000100004889c7ff9308010000ff"
    "931001000085c0746241544155ff93180100004189c4ff93200100004989c54885c0743a488dbb70010000be01010000"
    "4c89ea4c89e94531c0ff93280100004889c74885c07508ff933001000031ffff93380100004c89efff93380100004489"
    "e7ff9340010000415d415c4889dfbe00100000488b83480100005bffe0"
)
PENDING = bytes.fromhex(
    "5341544883ec28488d9f001000004889f94889fa31f64889e7ff930001000085c07565ff93080100004989c4b8e40000"
    "0031ff488d7424100f05488b44241848038328010000483d00ca9a3b720b482d00ca9a3b48ff4424104889442418488b"
    "3c2431f6488d542410ff931001000085c0740a488b3c24ff93180100004c89e7ff9320010000eb13488dbb00f0ffffbe"
    "00100000b80b0000000f054889dfbe00100000488b83300100004883c428415c5bffe0"
)

# Offsets in both pages: function addresses; in the first also the thread's name, how it was started, the Python code.
_TABLE, _NAME, _IS_JOINED, _SOURCE = 0x100, 0x160, 0x16C, 0x170
_PAGE_BYTES = 4096
# In the order of the tables.
_THREAD = (
    "pthread_self",
    "pthread_detach",
    "Py_IsInitialized",
    "PyGILState_Ensure",
    "PyDict_New",
    "PyRun_StringFlags",
    "PyErr_Clear",
    "Py_DecRef",
    "PyGILState_Release",
    "munmap",
)
_CALL = ("pthread_create", "PyEval_SaveThread", "pthread_timedjoin_np", "pthread_detach", "PyEval_RestoreThread")
FUNCTIONS = (*_THREAD, *_CALL, "Py_AddPendingCall", "__errno_location")
# How long the main thread waits for the injected thread, if a pending call started that.
_WAIT_NANOSECONDS = 100_000_000
THREAD_NAME = "breakranks"

_RED_ZONE_BYTES = 128
_MARK = 0x5AFE_C0DE_5AFE_C0DE
# Popped in this order, then the flags and the address to resume at.
_POPPED = "r15 r14 r13 r12 r11 r10 r9 r8 rbp rdi rsi rdx rcx rbx rax eflags rip".split()
# Signals that stay deliverable: faults of the thread itself, and SIGSETXID, for which setuid() in any thread waits.
_UNBLOCKED = sum(1 << number - 1 for number in (4, 5, 7, 8, 11, 33))
BLOCKED = unsigned(~_UNBLOCKED)
# Stack for pthread_create and Py_AddPendingCall below the data of the stub. They need less than 2 KB (measured).
CALL_ROOM_BYTES = 16384


class StubPlan(NamedTuple):
    """The data to write, its address, and the registers with which the thread enters the stub.

    ``block`` and ``head`` are the address and the first bytes of the block.
    """

    address: int
    data: bytes
    registers: Registers
    block: int
    head: bytes


def pages(functions: Mapping[str, int], source: str, pending: bool) -> bytes:
    """Return the content of the page of the thread, and of the pending call. ``source`` is short Python code."""
    name = THREAD_NAME.encode().ljust(_IS_JOINED - _NAME, b"\0") + struct.pack("<I", pending)
    whole = PAGE.ljust(_TABLE, b"\0") + _addresses(functions, _THREAD).ljust(_NAME - _TABLE, b"\0") + name
    whole += source.encode() + b"\0"
    if len(whole) > _PAGE_BYTES:
        raise ValueError("the injected source does not fit into a page")
    if not pending:
        return whole
    end = struct.pack("<QQ", _WAIT_NANOSECONDS, functions["munmap"])
    return whole.ljust(_PAGE_BYTES, b"\0") + PENDING.ljust(_TABLE, b"\0") + _addresses(functions, _CALL) + end


def _addresses(functions: Mapping[str, int], names: tuple[str, ...]) -> bytes:
    return struct.pack(f"<{len(names)}Q", *(functions[name] for name in names))


def plan(
    before: Registers,
    resume: Registers,
    *,
    stub: int,
    content: bytes,
    pending: bool,
    call: int,
    errno_location: int,
    is_initialized: int,
    mask: int,
    ends_call: int,
    vector_size: int,
) -> StubPlan:
    """Lay out the data of the stub below the red zone of the thread.

    ``before`` are the registers now, ``resume`` those with which the thread must resume after the stub. ``ends_call``
    are the signals after which its system call must return EINTR instead of being restarted.
    """
    values = resume._asdict()
    back = struct.pack("<17Q", *(values[name] for name in _POPPED))
    frame = before.rsp - _RED_ZONE_BYTES - len(back)
    block_data = struct.pack(
        "<5QQII3Q",
        *(BLOCKED, mask, ends_call, 0, 0),
        *(_MARK, 0, 0),
        *((1, _PAGE_BYTES, is_initialized) if pending else (0, 0, 0)),
    )
    assert len(block_data) == 80
    block = (frame - len(block_data) - len(content)) & -16
    # xsave wants 64-byte alignment, and zeros in its header.
    vectors = (block - vector_size) & -64
    data = (bytes(block - vectors) + block_data + content).ljust(frame - vectors, b"\0") + back
    registers = before._replace(
        rbx=block, rbp=vectors, r12=frame, r13=len(content), r14=call, r15=errno_location,
        rsp=vectors, rip=stub, orig_rax=unsigned(-1),
    )  # fmt: skip
    return StubPlan(address=vectors, data=data, registers=registers, block=block, head=block_data)


def room(content: bytes, vector_size: int) -> int:
    """The bytes of stack that the stub and its data use at most."""
    return _RED_ZONE_BYTES + 17 * 8 + 80 + len(content) + vector_size + 128 + CALL_ROOM_BYTES


def outcome(written: bytes, now: bytes) -> int | None:
    """Return the result that the stub left in its block: the return value of the function, or a negative errno.

    Return None if the stub has not finished, or the thread has overwritten the block since.
    """
    returned, mark = struct.unpack_from("<qQ", now, 32)
    intact = now[:24] == written[:24] and now[56:72] == written[56:72]
    return int(returned) if intact and mark == unsigned(~_MARK) else None
