"""What the ranks of a run tell of themselves: a JSON file for each attempt of a rank, and for its end.

The files are written by the code in the ranks, perhaps on other hosts. They are checked as any input from outside.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from breakranks.rankset import MAX_RANK
from breakranks.run.run_folder import RunFolder
from breakranks.typed_json import from_plain

_MAX_FILE_BYTES = 4 << 20
_RECHECK_SECONDS = 1.0  # a later program of the same rank may register in place of the first one
_NAME = re.compile(r"rank-(\d{1,8})\.attempt-(\d{1,6})\.json\Z")
_HOST = re.compile(r"[\w.:-]{1,255}\Z", re.ASCII)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRegistration:
    """One attempt of a rank, as it registered when it started.

    ``start`` is the start time of the process in clock ticks since the boot of its host. ``shown_out`` and
    ``shown_err`` are ``tail`` (run reads the file), ``relay`` (a process on its host copies it to the launcher's
    output), ``terminal``, or ``launcher`` (the stream was left alone). ``ready``: its output goes there already.
    ``in_foreground``: Ctrl-C in its terminal reaches the rank without run.
    """

    rank: int
    world: int
    pid: int
    host: str
    shown: str
    shown_out: str = ""
    shown_err: str = ""
    ready: bool = False
    in_foreground: bool = False
    attempt: int = 0
    local_rank: int = -1
    launcher: str = ""
    host_key: str = ""
    start: int = 0
    parent: int = 0
    python: str = ""
    out: str = ""
    err: str = ""
    time: float = 0.0
    slurm_job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankException:
    """An exception that nothing in the rank caught."""

    type: str
    message: str = ""
    traceback: str = ""
    time: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """The rank's Python ended in the regular way."""

    time: float = 0.0


class RankRegistry:
    """The registrations of one run, by rank and attempt."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder.registrations
        self._known: dict[tuple[int, int], RankRegistration] = {}
        self._read_versions: dict[str, tuple[int, int]] = {}  # inode and time of the files that were read
        self._ready: set[str] = set()
        self._next_recheck = 0.0

    def refresh(self) -> list[RankRegistration]:
        """Read the registrations that are new or have changed, and return them in the order of ranks and attempts."""
        new = []
        for name in self._names():
            found = self._read(name)
            if found is not None:
                self._known[found.rank, found.attempt] = found
                new.append(found)
                if found.ready:
                    self._ready.add(name)
        return sorted(new, key=lambda found: (found.rank, found.attempt))

    @property
    def registrations(self) -> list[RankRegistration]:
        """All of them, in the order of ranks and attempts."""
        return [found for _, found in sorted(self._known.items())]

    @property
    def hosts(self) -> set[str]:
        return {found.host for found in self._known.values()}

    def latest(self, rank: int) -> RankRegistration | None:
        """The last attempt of a rank."""
        return max((found for found in self._known.values() if found.rank == rank), key=_attempt, default=None)

    def exception(self, found: RankRegistration) -> RankException | None:
        """The exception that ended an attempt of a rank, if it left one."""
        return _typed(RankException, self._beside(found, "exception"))

    def end(self, found: RankRegistration) -> RankEnd | None:
        """The regular end of an attempt of a rank, if it had one."""
        return _typed(RankEnd, self._beside(found, "end"))

    def _beside(self, found: RankRegistration, what: str) -> Path:
        return self._folder / f"rank-{found.rank}.attempt-{found.attempt}.{what}.json"

    def _names(self) -> list[str]:
        """The files that may have changed. Those that are complete are looked at once a second."""
        now = time.monotonic()
        recheck = now >= self._next_recheck
        if recheck:
            self._next_recheck = now + _RECHECK_SECONDS
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return [name for name in names if (recheck or name not in self._ready) and _NAME.match(name)]

    def _read(self, name: str) -> RankRegistration | None:
        """Return the registration in a file, if it has changed since it was read."""
        try:
            status = os.stat(self._folder / name)
        except OSError:
            return None
        version = (status.st_ino, status.st_mtime_ns)
        if self._read_versions.get(name) == version:
            return None
        found = _typed(RankRegistration, self._folder / name)
        if found is None or not _is_plausible(found, name):
            return None  # on a network file system, a file may have its name before it has its contents
        self._read_versions[name] = version
        return found


def is_running(found: RankRegistration) -> bool:
    """Whether the process of a rank of this host runs. The start time tells it from a later one with its number."""
    try:
        with open(f"/proc/{found.pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in (b"Z", b"X") and (not found.start or int(fields[19]) == found.start)


def _attempt(found: RankRegistration) -> int:
    return found.attempt


def _is_plausible(found: RankRegistration, name: str) -> bool:
    match = _NAME.match(name)
    named = match is not None and (int(match[1]), int(match[2])) == (found.rank, found.attempt)
    return named and 0 <= found.rank <= MAX_RANK and 0 < found.pid < 1 << 31 and bool(_HOST.match(found.host))


def _typed(kind: type[T], path: Path) -> T | None:
    try:
        with open(path, "rb") as file:
            plain: Any = json.loads(file.read(_MAX_FILE_BYTES).decode("utf-8", "replace"))
        return from_plain(kind, plain) if isinstance(plain, dict) else None
    except (OSError, ValueError, RecursionError):
        return None
