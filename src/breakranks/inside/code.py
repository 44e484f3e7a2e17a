"""The machine code that runs in a process, and how its parts lie in memory.

``STUB`` is what a thread of the process is sent through. It is the same bytes always and needs nobody: it
calls one function and then puts everything back by itself, so that we may be killed at any instant. Its data
is a block on the thread's own stack (offsets from rbx):

     0 signals to block   8 its mask before   16 those that end a system call   24 scratch
    32 the page; at the end what was returned   40 a mark, inverted at the end   48 errno   52 what was returned
    56 the way: 0 a thread, 1 a pending call   64 where in the page it begins
    72 the new thread's id; for a pending call the address of Py_IsInitialized
    80 what goes into the page

``PAGE`` is what it copies into a page of its own: the life of the thread that runs our Python, and the pending
call that starts that thread. tests/unit/test_inside_code.py assembles both again from the text in this file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from breakranks.inside.trace import Registers, unsigned

STUB_TEXT = """
    mov eax, 14                       # rt_sigprocmask: no signal while we are here, and none in the new thread
    mov edi, 2
    mov rsi, rbx
    xor edx, edx
    mov r10d, 8
    syscall
    mov eax, -1                       # every vector and floating point register
    mov edx, eax
    xsave64 [rbp]
    cld
    mov eax, 9                        # mmap: a page of our own
    xor edi, edi
    mov esi, 4096
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
    mov rdi, rax                      # mprotect: to be run, not to be written
    mov esi, 4096
    mov edx, 5
    mov eax, 10
    syscall
    test eax, eax
    jnz unmap
    call r15                          # where errno is
    mov ecx, [rax]
    mov [rbx+48], ecx
    cmp qword ptr [rbx+56], 0
    je thread
    call [rbx+72]                     # Py_IsInitialized: asked here, in the one thread that could change it
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
    test eax, eax                     # from here on the page may be gone: the new thread unmaps it
    jz done
unmap:
    cdqe
    push rax
    mov rdi, [rbx+32]
    mov esi, 4096
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
    mov qword ptr [r12+112], -4       # then the call is not made again but returns EINTR, as it would have
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
    ret 128                           # over the red zone, to where it was
"""

PAGE_TEXT = """
    push rbx                          # the thread: rdi is the page
    mov rbx, rdi
    mov eax, 157                      # prctl: its name
    mov edi, 15
    lea rsi, [rbx+0x160]
    syscall
    call [rbx+0x100]                  # pthread_self
    mov rdi, rax
    call [rbx+0x108]                  # pthread_detach
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
    mov rax, [rbx+0x148]              # munmap returns into the end of the thread, not to the page
    pop rbx
    jmp rax
pending:
    sub rsp, 8                        # the pending call: pthread_create(rsp, 0, page, page)
    mov rcx, rdi
    mov rdx, rdi
    xor esi, esi
    mov rax, [rdi+0x150]
    mov r8, [rdi+0x158]               # returns to `xor eax, eax; add rsp, 8; ret` of a library, not to the page
    mov rdi, rsp
    push r8
    jmp rax
"""

STUB = bytes.fromhex(
    "b80e000000bf020000004889de31d241ba080000000f05b8ffffffff89c2480fae6500fcb80900000031ffbe00100000"
    "ba0300000041ba2200000049c7c0ffffffff4531c90f05483d00f0ffff0f878a000000488943204889c7488d73504c89"
    "e9f3a44889c7be00100000ba05000000b80a0000000f0585c0754e41ffd78b08894b3048837b38007419ff534885c0b8"
    "fdffffff7433488b73204889f748037b40eb11488b4b204889ca48035340488d7b4831f641ffd689433441ffd78b4b30"
    "89088b433485c07414489850488b7b20be00100000b80b0000000f055848894320b8ffffffff89c2480fae6d00b87f00"
    "0000488d7b18be080000000f05488b431848234310741249c7442470fcffffff49838424800000000248f75328b80e00"
    "0000bf02000000488d730831d241ba080000000f054c89e4415f415e415d415c415b415a415941585d5f5e5a595b589d"
    "c28000"
)
PAGE = bytes.fromhex(
    "534889fbb89d000000bf0f000000488db3600100000f05ff93000100004889c7ff9308010000ff931001000085c07462"
    "41544155ff93180100004189c4ff93200100004989c54885c0743a488dbb70010000be010100004c89ea4c89e94531c0"
    "ff93280100004889c74885c07508ff933001000031ffff93380100004c89efff93380100004489e7ff9340010000415d"
    "415c4889dfbe00100000488b83480100005bffe04883ec084889f94889fa31f6488b87500100004c8b87580100004889"
    "e74150ffe0"
)

# Offsets in the page.
_PENDING = 0xA4
_TABLE, _NAME, _SOURCE = 0x100, 0x160, 0x170
_PAGE_SIZE = 4096
# In the order of the table. The last is machine code of any library that says `return 0` over eight bytes.
FUNCTIONS = (
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
    "pthread_create",
    "return_0",
)
RETURN_0 = bytes.fromhex("31c04883c408c3")
THREAD_NAME = "breakranks"

_RED_ZONE = 128
_MARK = 0x5AFE_C0DE_5AFE_C0DE
# Popped in this order; then flags, and the address to go on at.
_POPPED = "r15 r14 r13 r12 r11 r10 r9 r8 rbp rdi rsi rdx rcx rbx rax eflags rip".split()
# What stays deliverable: faults of the thread itself, and SIGSETXID, for which setuid() in any thread waits.
_UNBLOCKED = sum(1 << number - 1 for number in (4, 5, 7, 8, 11, 33))
BLOCKED = unsigned(~_UNBLOCKED)
# What pthread_create and Py_AddPendingCall may need below our data; measured: under 2 KB.
CALL_ROOM = 16384


class Plan(NamedTuple):
    """What to write where, and the registers with which the thread begins. ``block``: address and head of the block."""

    address: int
    data: bytes
    registers: Registers
    block: int
    head: bytes


def page(functions: Mapping[str, int], source: str) -> bytes:
    """The content of the page. ``source`` is Python, and short: it all has to fit."""
    table = struct.pack(f"<{len(FUNCTIONS)}Q", *(functions[name] for name in FUNCTIONS))
    name = THREAD_NAME.encode().ljust(_SOURCE - _NAME, b"\0")
    whole = PAGE.ljust(_TABLE, b"\0") + table + name + source.encode() + b"\0"
    if len(whole) > _PAGE_SIZE:
        raise ValueError("what is to run does not fit into a page")
    return whole


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
) -> Plan:
    """Lay everything out below the red zone of the thread.

    ``before`` are its registers now, ``resume`` those with which it shall go on; ``ends_call`` the signals
    for which its system call is to return EINTR instead of being made again.
    """
    values = resume._asdict()
    back = struct.pack("<17Q", *(values[name] for name in _POPPED))
    frame = before.rsp - _RED_ZONE - len(back)
    block_data = struct.pack(
        "<5QQII3Q",
        *(BLOCKED, mask, ends_call, 0, 0),
        *(_MARK, 0, 0),
        *((1, _PENDING, is_initialized) if pending else (0, 0, 0)),
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
    return Plan(vectors, data, registers, block, block_data)


def room(content: bytes, vector_size: int) -> int:
    """Bytes of stack that all of it takes, at most."""
    return _RED_ZONE + 17 * 8 + 80 + len(content) + vector_size + 128 + CALL_ROOM


def outcome(written: bytes, now: bytes) -> int | None:
    """What the stub left in its block: what the function returned, negative for an error of the kernel.

    None: it has not finished, or the thread has written over it since.
    """
    returned, mark = struct.unpack_from("<qQ", now, 32)
    intact = now[:24] == written[:24] and now[56:72] == written[56:72]
    return int(returned) if intact and mark == unsigned(~_MARK) else None
