"""What a process is made of: its Python, its C library, the functions that we call, a place for our stub."""

from __future__ import annotations

import os
import re
import struct
import time
from typing import NamedTuple

from breakranks.inject import elf
from breakranks.inject import memory_map as memory_map
from breakranks.inject.elf import LoadedLibrary, NotElf
from breakranks.inject.inject_errors import InjectRefused, ProcessGone
from breakranks.inject.mailbox import MailboxOwner
from breakranks.inject.memory_map import Mapping, Maps
from breakranks.inject.stub import FUNCTIONS, STUB
from breakranks.observe import permissions
from breakranks.observe.process_memory import Memory
from breakranks.observe.process_state import process_state

_PAGE_BYTES = 4096
_OLDEST = (3, 10)
_C_LIBRARY = re.compile(r"libc(-2[.\d]+)?\.so")
_THREAD_LIBRARY = re.compile(r"libpthread(-2[.\d]+)?\.so")
_LOADER = re.compile(r"ld(-linux.*|-2[.\d]+)\.so|ld\.so")
_ALLOCATOR = re.compile(r"lib\w*malloc")
_PYTHON = ("PyGILState_Ensure", "PyRun_StringFlags", "Py_AddPendingCall")
# The end of every signal handler (`mov rax, 15; syscall`): glibc gives it no name.
_SIGNAL_RETURN = bytes.fromhex("48c7c00f0000000f05")


class CodeCave(NamedTuple):
    """Bytes after the end of a library's text, in its last page: mapped, executable, and nobody's.

    ``old`` is what the file has there. ``ours``: one of us was killed and left the stub, which is as good.
    """

    address: int
    old: bytes
    ours: bool

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + len(self.old)


class TargetProcess(NamedTuple):
    pid: int
    version: tuple[int, int]
    maps: Maps
    python: LoadedLibrary
    libc: LoadedLibrary
    loader: LoadedLibrary | None
    allocators: tuple[LoadedLibrary, ...]
    functions: dict[str, int]
    signal_return: int
    cave: CodeCave


def read(pid: int) -> TargetProcess:
    """Everything that can be known without touching the process. Refused says what is missing."""
    if os.uname().machine != "x86_64":
        raise InjectRefused(f"code can be run in a live process only on x86-64 for now, not on {os.uname().machine}")
    try:
        maps = memory_map.read(pid)
        memory = Memory(pid)
    except OSError as error:
        time.sleep(0.003)
        if process_state(pid) in "XZ":  # one that is about to end is refused too
            raise ProcessGone(pid) from error
        raise InjectRefused.because(permissions.denied(pid)) from error
    with memory:
        return _read_or_gone(pid, maps, memory)


def _read_or_gone(pid: int, maps: Maps, memory: Memory) -> TargetProcess:
    try:
        try:
            return _read(pid, maps, memory)
        except InjectRefused:
            # What is missing may be missing because the process has ended meanwhile: is its memory still there?
            if maps.mappings and not _is_there(memory, maps.mappings[0].start):
                raise ProcessGone(pid) from None
            raise
    except ProcessLookupError as error:
        raise ProcessGone(pid) from error


def _is_there(memory: Memory, address: int) -> bool:
    try:
        memory.read(address, 1)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # of a device: it cannot be read, and that is no end
    return True


def _read(pid: int, maps: Maps, memory: Memory) -> TargetProcess:
    files = maps.libraries()
    if not files:
        if process_state(pid) in "XZ":
            raise ProcessGone(pid)
        raise InjectRefused(f"process {pid} has no program of its own (a thread of the kernel, or one that is ending)")
    python = _python(pid, maps, files, memory)
    version = _version(python, memory)
    if version < _OLDEST:
        raise InjectRefused(
            f"process {pid} runs Python {version[0]}.{version[1]}; 3.10 is the oldest that can be asked"
        )
    libc = _named(pid, maps, files, _C_LIBRARY)
    if libc is None or libc.address("gnu_get_libc_version") is None:
        raise InjectRefused(f"process {pid} does not use the GNU C library, or it was replaced since the process began")
    threads = _named(pid, maps, files, _THREAD_LIBRARY)
    functions = {}
    for name in FUNCTIONS:
        at = None
        for library in (python, libc, threads):
            at = at or (library.address(name) if library is not None else None)
        if not at:
            raise InjectRefused(f"the function {name} was not found in process {pid}: a static build without symbols?")
        functions[name] = at
    signal_return = libc.elf.search(_SIGNAL_RETURN)
    allocators = tuple(
        found for one in files if _ALLOCATOR.match(one.name) and (found := _library(pid, maps, one)) is not None
    )
    return TargetProcess(
        pid=pid,
        version=version,
        maps=maps,
        python=python,
        libc=libc,
        loader=_named(pid, maps, files, _LOADER),
        allocators=allocators,
        functions=functions,
        signal_return=signal_return + libc.bias if signal_return is not None else 0,
        cave=_cave(pid, [python, libc], memory),
    )


def _library(pid: int, maps: Maps, mapping: Mapping) -> LoadedLibrary | None:
    try:
        return elf.library(pid, maps, mapping)
    except (OSError, NotElf):
        return None


def _named(pid: int, maps: Maps, files: list[Mapping], pattern: re.Pattern[str]) -> LoadedLibrary | None:
    one = next((one for one in files if pattern.match(one.name)), None)
    return _library(pid, maps, one) if one is not None else None


def _python(pid: int, maps: Maps, files: list[Mapping], memory: Memory) -> LoadedLibrary:
    """The library or program that has the interpreter in it."""
    program = os.readlink(f"/proc/{pid}/exe") if os.access(f"/proc/{pid}/exe", os.R_OK) else ""
    likely = [one for one in files if one.name.startswith("libpython3")]
    likely += [one for one in files if one.path == program.removesuffix(" (deleted)")]
    for one in likely:
        found = _library(pid, maps, one)
        if found is None or any(found.address(name) is None for name in _PYTHON):
            continue
        # A file that was replaced under the same name would give addresses of something else.
        start = next((m.start for m in maps.of(one.path) if m.offset == 0), None)
        if start is not None and memory.read(start, len(found.elf.head)) != found.elf.head:
            raise InjectRefused(
                f"{one.path} is not the file any more that process {pid} runs", "Start the process anew."
            )
        return found
    raise InjectRefused(
        f"process {pid} has no CPython interpreter that can be asked",
        "It may be another program or implementation, still be starting, or be a static build without symbols.",
    )


def _version(python: LoadedLibrary, memory: Memory) -> tuple[int, int]:
    at = python.address("Py_Version")  # since 3.11
    if at is not None:
        number = struct.unpack("<I", memory.read(at, 4))[0]
        return number >> 24, number >> 16 & 255
    found = re.search(r"python(\d)\.(\d+)", python.path.rpartition("/")[2])
    if found is None:
        raise InjectRefused(f"the version of {python.path} is not known: older than 3.11")
    return int(found[1]), int(found[2])


def _cave(pid: int, libraries: list[LoadedLibrary], memory: Memory) -> CodeCave:
    for one in libraries:
        text = one.elf.text
        end = text.address + text.file_size
        start = end + 15 & -16
        if start + len(STUB) > end + _PAGE_BYTES - 1 & -_PAGE_BYTES or not one.holds(start + one.bias):
            continue
        old = one.elf.raw(text.offset + start - text.address, len(STUB))
        now = memory.read(start + one.bias, len(STUB))
        if now in (old, STUB):
            return CodeCave(start + one.bias, old, now == STUB)
    raise InjectRefused(f"process {pid} has no room for our code in the libraries where it is looked for")


def owner(pid: int) -> MailboxOwner:
    """Whose it is. Gone when it is."""
    uid = gid = -1
    own = pid
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("Uid:"):
                    uid = int(line.split()[4])  # what the kernel checks files against
                elif line.startswith("Gid:"):
                    gid = int(line.split()[4])
                elif line.startswith("NSpid:"):
                    own = int(line.split()[-1])
    except OSError as error:
        raise ProcessGone(pid) from error
    return MailboxOwner(uid, gid, own)
