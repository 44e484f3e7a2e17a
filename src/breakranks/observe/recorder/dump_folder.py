"""A folder of dumps, one file per rank, read by several processes at once.

Each reader runs in a process of its own with a limit on its memory, so that a hostile or broken file affects only
itself. The results are small: the tracks, not the entries.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import resource
import signal
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

from breakranks.errors import UsageError
from breakranks.observe.recorder import dump_parse as reader
from breakranks.observe.recorder.safe_unpickle import FOREIGN, DumpError
from breakranks.snapshot.model import Frame, Problem
from breakranks.snapshot.recorder_tables import Group, Operation, Recorder

MAX_DUMP_BYTES = 1 << 28  # the largest ring buffer that torch supports makes far smaller dumps
MAX_FILES = 200_000
_MEMORY_BYTES = 1 << 30
_MAX_DEPTH = 3
_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_LAST = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin|dump|trace))?\Z", re.IGNORECASE)
_FILES_PER_TASK = 4


class DumpFile(NamedTuple):
    path: str
    rank: int
    size: int
    modified: float


class DumpRead(NamedTuple):
    """One dump, with the tables that its rows refer to."""

    file: DumpFile
    recorder: Recorder
    operations: tuple[Operation, ...]
    groups: tuple[Group, ...]
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]


class DumpSkipped(NamedTuple):
    """A file that is left out, and why."""

    file: DumpFile
    what: str
    remedy: str = ""

    def problem(self) -> Problem:
        return Problem(f"{self.file.path} {self.what}: left out", self.remedy)


def files(folder: str) -> list[DumpFile]:
    """Return the files that may be dumps, by the rank in the name: ``nccl_trace_rank_13``, ``13``, ``fr_13.json``."""
    found = sorted(_walk(folder, _MAX_DEPTH), key=lambda file: (file.rank, file.path))
    if not found:
        raise UsageError(
            f"{folder} contains no dumps",
            "A dump is a file whose name ends in its rank, such as nccl_trace_rank_3. NCCL writes it on a timeout, to "
            "the path in TORCH_FR_DUMP_TEMP_FILE (TORCH_NCCL_DEBUG_INFO_TEMP_FILE).",
        )
    return found


def _walk(folder: str, depth: int) -> Iterator[DumpFile]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"cannot read {folder}: {error.strerror}", "Check the path and its permissions.") from error
    if len(listed) > MAX_FILES:
        raise UsageError(f"{folder} contains {len(listed):,} files", "Name a folder that contains only the dumps.")
    for entry in listed:
        if entry.name.startswith("."):
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth > 1:
                    yield from _walk(entry.path, depth - 1)
                continue
            rank = rank_of(entry.name)
            if rank is None or not entry.is_file():
                continue
            status = entry.stat()
        except (OSError, UsageError):
            continue  # not readable, or removed since: a subfolder does not make the whole folder unusable
        yield DumpFile(entry.path, rank, status.st_size, status.st_mtime)


def rank_of(name: str) -> int | None:
    """Return the rank in the name of a dump, or None if the name is not that of a dump.

    >>> rank_of("nccl_trace_rank_13"), rank_of("rank7.json"), rank_of("dump_0003.pkl"), rank_of("train.log")
    (13, 7, 3, None)
    """
    match = _RANK.search(name) or _LAST.search(name)
    if match is None or len(match[1]) > 8 or name.endswith((".log", ".txt", ".py", ".md", ".brk", ".gz", ".zip")):
        return None
    return int(match[1])


def read_all(found: list[DumpFile]) -> Iterator[DumpRead | DumpSkipped]:
    """Read every file, in any order, by one process per CPU."""
    small = [file for file in found if 0 < file.size <= MAX_DUMP_BYTES]
    for file in found:
        if file.size > MAX_DUMP_BYTES:
            yield DumpSkipped(file, f"is larger than any dump ({file.size:,} bytes)", FOREIGN)
        elif not file.size:
            yield DumpSkipped(file, "is empty", "The rank may have died while writing it.")
    yield from _in_processes(small)


def _in_processes(found: list[DumpFile]) -> Iterator[DumpRead | DumpSkipped]:
    if not found:
        return
    workers = max(1, min(os.cpu_count() or 1, 16, len(found) // _FILES_PER_TASK + 1))
    waiting = list(found)
    broken = False
    done = 0
    with _pool(workers) as pool:
        answers = pool.map(_read_file, waiting, chunksize=_FILES_PER_TASK if len(waiting) > 4 * workers else 1)
        try:
            for answer in answers:
                done += 1
                yield answer
        except BrokenProcessPool:
            broken = True
    if broken:
        # One file crashed its reader, and it is not known which one: read each remaining file in a process of its own.
        for file in waiting[done:]:
            yield _alone(file)


def _pool(workers: int) -> ProcessPoolExecutor:
    # Forked, so that nothing is imported again. There are no threads yet that a fork could break.
    return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _bounded)


def _alone(file: DumpFile) -> DumpRead | DumpSkipped:
    with _pool(1) as pool:
        try:
            return pool.submit(_read_file, file).result()
        except BrokenProcessPool:
            return DumpSkipped(file, "crashed the process that read it", "It is not a dump, or it is incomplete.")


def _bounded() -> None:
    gc.disable()  # the values of a dump have no cycles, and there are hundreds of thousands of them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends this process
    with open("/proc/self/statm") as text:
        now = int(text.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _read_file(file: DumpFile) -> DumpRead | DumpSkipped:
    try:
        handle = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                return DumpSkipped(file, "is not a regular file", FOREIGN)
            if status.st_size > MAX_DUMP_BYTES:
                return DumpSkipped(file, "has grown larger than any dump", FOREIGN)
            data = opened.read(status.st_size + 1)
        dump = reader.read(data)
    except OSError as error:
        return DumpSkipped(file, f"cannot be read ({error.strerror})", "Check its permissions.")
    except DumpError as error:
        return DumpSkipped(file, error.message, error.help)
    except MemoryError:
        return DumpSkipped(file, "requires more memory than a dump can need", FOREIGN)
    except RecursionError:
        return DumpSkipped(file, "is nested too deeply for a dump", FOREIGN)
    return DumpRead(
        file=file,
        recorder=dump.recorder,
        operations=tuple(dump.table.operations),
        groups=tuple(dump.table.groups),
        frames=tuple(dump.stacks.frames),
        stacks=tuple(dump.stacks.stacks),
    )


def newest_of_each(dumps: Iterable[DumpRead]) -> tuple[dict[int, DumpRead], list[DumpSkipped]]:
    """Keep one dump per rank: of several, the one with the newest record."""
    kept: dict[int, DumpRead] = {}
    left = []
    for dump in sorted(dumps, key=lambda dump: dump.file.path):
        other = kept.get(dump.file.rank)
        if other is None:
            kept[dump.file.rank] = dump
            continue
        older, newer = sorted((dump, other), key=lambda candidate: candidate.recorder.newest)
        kept[dump.file.rank] = newer
        left.append(DumpSkipped(older.file, f"is a second dump of rank {dump.file.rank}, older than {newer.file.path}"))
    return kept, left
