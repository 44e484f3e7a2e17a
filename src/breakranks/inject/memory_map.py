"""The memory map of a process."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

_DELETED = " (deleted)"


class Mapping(NamedTuple):
    """One line of /proc/PID/maps. ``deleted``: its file was deleted or replaced."""

    start: int
    end: int
    flags: str
    offset: int
    file: tuple[str, int]
    path: str
    deleted: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def executable(self) -> bool:
        return self.flags[2] == "x"


class Maps:
    """All mappings of a process, by address and by file."""

    def __init__(self, mappings: list[Mapping]) -> None:
        self.mappings = mappings
        self._starts = [mapping.start for mapping in mappings]

    def at(self, address: int) -> Mapping | None:
        index = bisect_right(self._starts, address) - 1
        return self.mappings[index] if index >= 0 and address < self.mappings[index].end else None

    def of(self, path: str) -> list[Mapping]:
        return [mapping for mapping in self.mappings if mapping.path == path]

    def libraries(self) -> list[Mapping]:
        """The first executable mapping of each file."""
        found: dict[str, Mapping] = {}
        for mapping in self.mappings:
            if mapping.executable and mapping.file[1]:
                found.setdefault(mapping.path, mapping)
        return list(found.values())

    def within(self, address: int, name: str) -> bool:
        """Whether an address is in a mapping with this name, such as ``[vdso]``."""
        mapping = self.at(address)
        return mapping is not None and mapping.path == name


def read(pid: int) -> Maps:
    """Return the mappings of a process; raise OSError if it has ended or must not be read."""
    with open(f"/proc/{pid}/maps", "rb") as file:
        return parse(file.read().decode(errors="surrogateescape"))


def parse(text: str) -> Maps:
    found = []
    for line in text.splitlines():
        fields = line.split(None, 5)
        start, _, end = fields[0].partition("-")
        path = fields[5] if len(fields) > 5 else ""
        deleted = path.endswith(_DELETED)
        if deleted:
            path = path[: -len(_DELETED)]
        found.append(
            Mapping(
                start=int(start, 16),
                end=int(end, 16),
                flags=fields[1],
                offset=int(fields[2], 16),
                file=(fields[3], int(fields[4])),
                path=path,
                deleted=deleted,
            )
        )
    return Maps(found)
