"""ELF files of libraries: the addresses of functions and the bytes of the text segment."""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from breakranks.inject.memory_map import Mapping

_PAGE_BYTES = 4096
_LOAD = 1
_EXECUTE = 1
_X86_64 = 62
_SYMTAB, _DYNSYM = 2, 11
_FUNCTION, _OBJECT = 2, 1
_ENTRY = "<IBBHQQ"


class Symbol(NamedTuple):
    """``value`` is the address in the file; with the bias of the library added, the address in the process."""

    value: int
    size: int


class Segment(NamedTuple):
    flags: int
    offset: int
    address: int
    file_size: int


class NotElf(Exception):
    """The file is not ELF, or is for another machine."""


class Elf:
    """One file. It is opened once and kept, since the ranks of a host share their libraries."""

    def __init__(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._data = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise NotElf(path) from error
        finally:
            os.close(handle)
        head = self._data[:64]
        if len(head) < 64 or head[:5] != b"\x7fELF\x02" or struct.unpack_from("<H", head, 18)[0] != _X86_64:
            raise NotElf(path)
        self.head = head
        self._found: dict[tuple[str, ...], tuple[tuple[str, Symbol], ...]] = {}
        _, _, _, _, self._segments_at, self._sections_at = struct.unpack_from("<HHIQQQ", head, 16)
        self._segment_count, self._section_count = (struct.unpack_from("<H", head, at)[0] for at in (56, 60))

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The loadable segments."""
        found = []
        for index in range(self._segment_count):
            kind, flags, offset, address, _, file_size = struct.unpack_from(
                "<IIQQQQ", self._data, self._segments_at + 56 * index
            )
            if kind == _LOAD:
                found.append(Segment(flags, offset, address, file_size))
        return tuple(found)

    @property
    def text(self) -> Segment:
        """The executable segment; the largest if there are several."""
        return max(
            (segment for segment in self.segments if segment.flags & _EXECUTE), key=lambda segment: segment.file_size
        )

    @cached_property
    def exported(self) -> dict[str, Symbol]:
        found: dict[str, Symbol] = {}
        for texts, table in self._tables(_DYNSYM):
            for name, info, _, section, value, size in struct.iter_unpack(_ENTRY, table):
                if section and value and info & 15 in (_FUNCTION, _OBJECT):
                    text = texts[name : texts.index(b"\0", name)].decode(errors="replace")
                    found.setdefault(text, Symbol(value, size))
        return found

    def find(self, name: str) -> Symbol | None:
        if self.exported:
            return self.exported.get(name)
        return next((symbol for _, symbol in self.everywhere((name,))), None)

    def everywhere(self, names: tuple[str, ...]) -> tuple[tuple[str, Symbol], ...]:
        """These functions, with static ones and split-off parts (``name.cold``) if the file is not stripped."""
        if names not in self._found:
            self._found[names] = tuple(self._search(names))
        return self._found[names]

    def _search(self, names: tuple[str, ...]) -> Iterator[tuple[str, Symbol]]:
        for kind in (_DYNSYM, _SYMTAB):
            for texts, table in self._tables(kind):
                # A search in the string table is faster than decoding 20,000 names to find 20.
                at = {
                    found.start(): name for name in names for found in re.finditer(rb"%s[.\0]" % name.encode(), texts)
                }
                for begin, _, _, section, value, size in struct.iter_unpack(_ENTRY, table):
                    if begin in at and section:
                        yield at[begin], Symbol(value, size)

    def bytes_at(self, value: int, size: int) -> bytes:
        """The bytes at an address of the file; empty if it has none there."""
        for segment in self.segments:
            if segment.address <= value < segment.address + segment.file_size:
                at = segment.offset + value - segment.address
                return self._data[at : at + size]
        return b""

    def raw(self, offset: int, size: int) -> bytes:
        """The bytes at an offset; zeros after the end of the file, as the kernel maps them."""
        return self._data[offset : offset + size].ljust(size, b"\0")

    def search(self, pattern: bytes) -> int | None:
        """The address in the file of the first occurrence of ``pattern`` in its text."""
        text = self.text
        at = self._data.find(pattern, text.offset, text.offset + text.file_size)
        return None if at < 0 else at - text.offset + text.address

    def _tables(self, wanted: int) -> Iterator[tuple[bytes, bytes]]:
        """The names and the entries of each symbol table of the kind ``wanted``."""
        sections = [
            struct.unpack_from("<IIQQQQII", self._data, self._sections_at + 64 * index)
            for index in range(self._section_count)
            if self._sections_at + 64 * (index + 1) <= len(self._data)
        ]
        for _, kind, _, _, offset, size, link, _ in sections:
            if kind == wanted and link < len(sections):
                texts = self._data[sections[link][4] : sections[link][4] + sections[link][5]]
                yield texts, self._data[offset : offset + size - size % 24]


_opened: dict[tuple[int, int, int], Elf] = {}


def of(pid: int, mapping: Mapping) -> Elf:
    """Return the file behind a mapping, as the process sees it; raise OSError or NotElf if it cannot be read."""
    # map_files leads to the mapped file even if it was renamed or deleted, but only root may follow it.
    ways = [f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"]
    if not mapping.deleted:
        ways.append(f"/proc/{pid}/root{mapping.path}")
    ways.append(f"/proc/{pid}/exe")
    for way in ways:
        try:
            about = os.stat(way)
        except OSError:
            continue
        if way.endswith("/exe") and about.st_ino != mapping.file[1]:
            continue
        key = (about.st_dev, about.st_ino, about.st_mtime_ns)
        if key not in _opened:
            _opened[key] = Elf(way)
        return _opened[key]
    raise FileNotFoundError(mapping.path)


class LoadedLibrary(NamedTuple):
    """A file and where a process has mapped it. ``start`` and ``end`` bound its text."""

    path: str
    elf: Elf
    bias: int
    start: int
    end: int

    def address(self, name: str) -> int | None:
        found = self.elf.find(name)
        return None if found is None else found.value + self.bias

    def holds(self, address: int) -> bool:
        return self.start <= address < self.end

    def returns_to(self, address: int) -> bool:
        """Whether an address in the text follows a call instruction: only then can it be a return address."""
        before = self.elf.bytes_at(address - self.bias - 7, 7)
        if len(before) < 7:
            return False
        if before[2] == 0xE8:
            return True
        # ff /2: a call through a register or memory, two to seven bytes long.
        return any(before[-size] == 0xFF and before[1 - size] >> 3 & 7 == 2 for size in (2, 3, 4, 6, 7))


def library(pid: int, mapping: Mapping) -> LoadedLibrary:
    """Return the library that a mapping is part of; raise OSError or NotElf if its file cannot be read."""
    elf = of(pid, mapping)
    text = next((segment for segment in elf.segments if segment.offset & -_PAGE_BYTES == mapping.offset), None)
    if text is None:
        raise NotElf(mapping.path)
    bias = mapping.start - (text.address & -_PAGE_BYTES)
    return LoadedLibrary(path=mapping.path, elf=elf, bias=bias, start=mapping.start, end=mapping.end)
