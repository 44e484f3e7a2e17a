"""The machine code of the stub matches its text; registers, stack layout and memory maps are computed correctly."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from breakranks.inject import memory_map, safe_threads, stub
from breakranks.inject.ptrace import Registers, unsigned


@pytest.mark.skipif(not shutil.which("as") or not shutil.which("objcopy"), reason="no assembler here")
@pytest.mark.parametrize(
    ("text", "expected"),
    [(stub.STUB_TEXT, stub.STUB), (stub.PAGE_TEXT, stub.PAGE), (stub.PENDING_TEXT, stub.PENDING)],
    ids=["stub", "page", "pending"],
)
def test_the_bytes_are_the_text(text: str, expected: bytes, tmp_path: Path) -> None:
    source, assembled, flat = tmp_path / "code.s", tmp_path / "code.o", tmp_path / "code.bin"
    source.write_text(".intel_syntax noprefix\n" + text)
    subprocess.run(["as", source, "-o", assembled], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", assembled, flat], check=True)
    assert flat.read_bytes() == expected


def registers(**values: int) -> Registers:
    return Registers(*range(1, 28))._replace(cs=0x33, rsp=0x7FFF_0000_1238, rip=0x4000_0102)._replace(**values)


SYSCALL = b"\x0f\x05"
FUTEX, EPOLL_WAIT, READ = 202, 232, 0


@pytest.mark.parametrize(
    ("call", "result", "argument", "number"),
    [
        (READ, -512, 0, READ),
        (FUTEX, -516, 0, 219),
        (FUTEX, -514, 0, FUTEX),
        (EPOLL_WAIT, -4, unsigned(-1) & 0xFFFFFFFF, EPOLL_WAIT),
        (EPOLL_WAIT, -4, 500, EPOLL_WAIT),
    ],
)
def test_a_call_that_was_cut_short_is_made_again(call: int, result: int, argument: int, number: int) -> None:
    before = registers(orig_rax=call, rax=unsigned(result), r10=argument)
    after = safe_threads.resumed(before, SYSCALL)
    assert (after.rip, after.rax) == (before.rip - 2, number)
    assert after._replace(rip=before.rip, rax=before.rax, orig_rax=before.orig_rax) == before


@pytest.mark.parametrize(
    ("call", "result", "bytes_before"),
    [
        (unsigned(-1), -512, SYSCALL),  # in no call
        (READ, 5, SYSCALL),  # done
        (READ, -11, SYSCALL),  # failed
        (READ, -512, b"\x90\x90"),  # not after a syscall instruction
        (EPOLL_WAIT, -4, SYSCALL),  # with a timeout of an hour
    ],
)
def test_any_other_goes_on_where_it_is(call: int, result: int, bytes_before: bytes) -> None:
    before = registers(orig_rax=call, rax=unsigned(result), r10=3_600_000)
    assert safe_threads.resumed(before, bytes_before) == before._replace(orig_rax=unsigned(-1))


@pytest.mark.parametrize(
    ("call", "second", "expected"),
    [
        (FUTEX, 0x189, True),  # a semaphore
        (FUTEX, 0x89, True),  # a condition variable
        (FUTEX, 0x80, False),  # a lock of glibc
        (FUTEX, 0, False),
        (EPOLL_WAIT, 0, True),
        (9, 0, False),  # mmap
        (10, 0, False),
    ],
)
def test_which_waits_are_safe(call: int, second: int, expected: bool) -> None:
    assert safe_threads.waits(call, second) is expected


def test_everything_lies_below_the_red_zone_and_comes_back() -> None:
    before = registers()
    content = b"c" * 500
    plan = stub.plan(
        before, before._replace(rax=77), stub=0x1000, content=content, pending=True, call=2, errno_location=3,
        is_initialized=4, mask=5, ends_call=6, vector_size=2696,
    )  # fmt: skip
    end = plan.address + len(plan.data)
    assert end == before.rsp - 128
    assert plan.address % 64 == 0 and plan.registers.rsp == plan.address and plan.block % 16 == 0
    assert before.rsp - plan.address < stub.room(content, 2696)
    frame = plan.data[plan.registers.r12 - plan.address :]
    *popped, flags, at = struct.unpack("<17Q", frame)
    assert popped[14] == 77 and popped[13] == before.rbx and popped[0] == before.r15
    assert (flags, at) == (before.eflags, before.rip)
    assert plan.data[plan.block - plan.address + 80 :].startswith(content)
    assert plan.registers.r13 == len(content)


def test_what_the_stub_left_is_believed_only_when_intact() -> None:
    plan = stub.plan(
        registers(), registers(), stub=1, content=b"", pending=False, call=2, errno_location=3, is_initialized=4,
        mask=5, ends_call=6, vector_size=576,
    )  # fmt: skip
    done = bytearray(plan.head)
    assert stub.outcome(plan.head, bytes(done)) is None
    struct.pack_into("<qQ", done, 32, -11, unsigned(~struct.unpack_from("<Q", plan.head, 40)[0]))
    assert stub.outcome(plan.head, bytes(done)) == -11
    done[0] ^= 1
    assert stub.outcome(plan.head, bytes(done)) is None


def test_maps_are_found_by_address() -> None:
    found = memory_map.parse(
        "00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/with blank\n"
        "00e03000-00e24000 rw-p 00000000 00:00 0 [heap]\n"
        "7f0000000000-7f0000001000 r-xp 00001000 08:02 9 /lib/old.so (deleted)\n"
    )
    assert found.at(0x400010) == found.mappings[0]
    assert found.at(0x452000) is None and found.at(1) is None
    assert [one.name for one in found.libraries()] == ["with blank", "old.so"]
    assert found.mappings[2].deleted and not found.mappings[0].deleted
