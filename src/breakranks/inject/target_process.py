"""The parts of a process that the injector needs: Python, the C library, addresses of functions, room for the stub."""

from __future__ import annotations

import os
import re
import struct
import time
from typing import NamedTuple

from breakranks.inject import elf, memory_map
from breakranks.inject.elf import LoadedLibrary, NotElf
from breakranks.inject.inject_errors import InjectRefused, ProcessGone
from breakranks.inject.mailbox import MailboxOwner
from breakranks.inject.memory_map import Mapping, Maps
from breakranks.inject.stub import FUNCTIONS, STUB
from breakranks.observe import ptrace_permissions
from breakranks.observe.process_memory import Memory
from breakranks.observe.process_state import process_state

_PAGE_BYTES = 4096
_OLDEST = (3, 10)
_C_LIBRARY = re.compile(r"libc(-2[.\d]+)?\.so")
_THREAD_LIBRARY = re.compile(r"libpthread(-2[.\d]+)?\.so")
_LOADER = re.compile(r"ld(-linux.*|-2[.\d]+)\.so|ld\.so")
_ALLOCATOR = re.compile(r"lib\w*malloc")
_PYTHON = ("PyGILState_Ensure", "PyRun_StringFlags", "Py_AddPendingCall")
# The code to which every signal handler returns (`mov rax, 15; syscall`). It has no symbol in glibc.
_SIGNAL_RETURN = bytes.fromhex("48c7c00f0000000f05")


class CodeCave(NamedTuple):
    """Bytes after the end of a library's text, in its last page: mapped, executable and unused.

    ``old`` is the content of the file. ``has_stub``: a breakranks that was killed left the stub there.
    """

    address: int
    old: bytes
    has_stub: bool

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
    """Read everything that needs no stop of the process; raise InjectRefused or ProcessGone if a part is missing."""
    if os.uname().machine != "x86_64":
        raise InjectRefused(f"injecting code is supported only on x86-64, not on {os.uname().machine}")
    try:
        maps = memory_map.read(pid)
        memory = Memory(pid)
    except OSError as error:
        time.sleep(0.003)
        if process_state(pid) in "XZ":  # the kernel also refuses a process that is about to end
            raise ProcessGone(pid) from error
        raise InjectRefused.because(ptrace_permissions.denied(pid)) from error
    with memory:
        return _read_or_gone(pid, maps, memory)


def _read_or_gone(pid: int, maps: Maps, memory: Memory) -> TargetProcess:
    try:
        try:
            return _read(pid, maps, memory)
        except InjectRefused:
            # A part may be missing because the process has ended since. Then its memory cannot be read any more.
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
        pass  # a device mapping, which cannot be read while the process lives
    return True


def _read(pid: int, maps: Maps, memory: Memory) -> TargetProcess:
    files = maps.libraries()
    if not files:
        if process_state(pid) in "XZ":
            raise ProcessGone(pid)
        raise InjectRefused(f"process {pid} has no program (it is a kernel thread, or it is exiting)")
    python = _python(pid, maps, files, memory)
    version = _version(python, memory)
    if version < _OLDEST:
        raise InjectRefused(
            f"process {pid} runs Python {version[0]}.{version[1]}; code can be injected into 3.10 and later"
        )
    libc = _named(pid, maps, files, _C_LIBRARY)
    if libc is None or libc.address("gnu_get_libc_version") is None:
        raise InjectRefused(f"process {pid} does not use glibc, or glibc was replaced since the process started")
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
        found
        for mapping in files
        if _ALLOCATOR.match(mapping.name) and (found := _library(pid, maps, mapping)) is not None
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
        return elf.library(pid, mapping)
    except (OSError, NotElf):
        return None


def _named(pid: int, maps: Maps, files: list[Mapping], pattern: re.Pattern[str]) -> LoadedLibrary | None:
    mapping = next((mapping for mapping in files if pattern.match(mapping.name)), None)
    return _library(pid, maps, mapping) if mapping is not None else None


def _python(pid: int, maps: Maps, files: list[Mapping], memory: Memory) -> LoadedLibrary:
    """The library or program that contains the interpreter."""
    program = os.readlink(f"/proc/{pid}/exe") if os.access(f"/proc/{pid}/exe", os.R_OK) else ""
    likely = [mapping for mapping in files if mapping.name.startswith("libpython3")]
    likely += [mapping for mapping in files if mapping.path == program.removesuffix(" (deleted)")]
    for mapping in likely:
        found = _library(pid, maps, mapping)
        if found is None or any(found.address(name) is None for name in _PYTHON):
            continue
        # If the file was replaced under the same name, its symbols do not match the mapped code.
        start = next((m.start for m in maps.of(mapping.path) if m.offset == 0), None)
        if start is not None and memory.read(start, len(found.elf.head)) != found.elf.head:
            raise InjectRefused(f"{mapping.path} was replaced since process {pid} started", "Restart the process.")
        return found
    raise InjectRefused(
        f"process {pid} has no CPython interpreter that code can be injected into",
        "It may be another program or implementation, still be starting, or be a static build without symbols.",
    )


def _version(python: LoadedLibrary, memory: Memory) -> tuple[int, int]:
    at = python.address("Py_Version")  # since 3.11
    if at is not None:
        number = struct.unpack("<I", memory.read(at, 4))[0]
        return number >> 24, number >> 16 & 255
    found = re.search(r"python(\d)\.(\d+)", python.path.rpartition("/")[2])
    if found is None:
        raise InjectRefused(f"the Python version of {python.path} is unknown: it is older than 3.11")
    return int(found[1]), int(found[2])


def _cave(pid: int, libraries: list[LoadedLibrary], memory: Memory) -> CodeCave:
    for library in libraries:
        text = library.elf.text
        end = text.address + text.file_size
        start = end + 15 & -16
        if start + len(STUB) > end + _PAGE_BYTES - 1 & -_PAGE_BYTES or not library.holds(start + library.bias):
            continue
        old = library.elf.raw(text.offset + start - text.address, len(STUB))
        now = memory.read(start + library.bias, len(STUB))
        if now in (old, STUB):
            return CodeCave(start + library.bias, old, now == STUB)
    raise InjectRefused(f"libpython and libc of process {pid} have no unused bytes for the injected stub")


def owner(pid: int) -> MailboxOwner:
    """Return the user and group of a process, and its own pid; raise ProcessGone if it has ended."""
    uid = gid = -1
    own = pid
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("Uid:"):
                    uid = int(line.split()[4])  # the file system uid
                elif line.startswith("Gid:"):
                    gid = int(line.split()[4])
                elif line.startswith("NSpid:"):
                    own = int(line.split()[-1])
    except OSError as error:
        raise ProcessGone(pid) from error
    return MailboxOwner(uid, gid, own)
