"""A folder of dumps, one file a rank, read by several processes at once.

Each reader runs in a process of its own with a bound on its memory, so that a hostile or broken file costs that
file and no more. What comes back is small: the tracks, not the entries.
"""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import stat
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from breakranks.errors import UsageError
from breakranks.observe.recorder import dump_parse as reader
from breakranks.observe.recorder.safe_unpickle import FOREIGN, DumpError
from breakranks.snapshot.model import Frame, Problem
from breakranks.snapshot.recorder_tables import Group, Operation, Recorder

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

MAX_DUMP_BYTES = 1 << 28  # of one dump: the largest ring that torch can be asked for is far below
MAX_FILES = 200_000
_MEMORY_BYTES = 1 << 30
_DEPTH = 3
_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_LAST = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin|dump|trace))?\Z", re.IGNORECASE)
_BATCH = 4


class File(NamedTuple):
    path: str
    rank: int
    size: int
    modified: float


class Read(NamedTuple):
    """One dump, whole; its rows are of its own tables."""

    file: File
    recorder: Recorder
    operations: tuple[Operation, ...]
    groups: tuple[Group, ...]
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]


class Left(NamedTuple):
    """A file that was left out, and why."""

    file: File
    what: str
    remedy: str = ""

    def problem(self) -> Problem:
        return Problem(f"{self.file.path} {self.what}: left out", self.remedy)


def is_folder(path: str) -> bool:
    return os.path.isdir(path)


def files(folder: str) -> list[File]:
    """The files that can be dumps, by rank. The rank is in the name: ``nccl_trace_rank_13``, ``13``, ``fr_13.json``."""
    found = sorted(_walk(folder, _DEPTH), key=lambda file: (file.rank, file.path))
    if not found:
        raise UsageError(
            f"{folder} has no dumps in it",
            "A dump is a file whose name ends in its rank, such as nccl_trace_rank_3. NCCL writes them when it times "
            "out, where TORCH_FR_DUMP_TEMP_FILE (TORCH_NCCL_DEBUG_INFO_TEMP_FILE) says.",
        )
    return found


def _walk(folder: str, depth: int) -> Iterator[File]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"cannot read {folder}: {error.strerror}", "Check the path and its permissions.") from error
    if len(listed) > MAX_FILES:
        raise UsageError(f"{folder} has {len(listed):,} files in it", "Name the folder that has the dumps alone.")
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
            continue  # closed to us, or gone meanwhile: a folder below the one that was named is no reason to stop
        yield File(entry.path, rank, status.st_size, status.st_mtime)


def rank_of(name: str) -> int | None:
    """
    >>> rank_of("nccl_trace_rank_13"), rank_of("rank7.json"), rank_of("dump_0003.pkl"), rank_of("train.log")
    (13, 7, 3, None)
    """
    match = _RANK.search(name) or _LAST.search(name)
    if match is None or len(match[1]) > 8 or name.endswith((".log", ".txt", ".py", ".md", ".brk", ".gz", ".zip")):
        return None
    return int(match[1])


def read_all(found: list[File]) -> Iterator[Read | Left]:
    """Every file's dump, in any order, from as many processes as there are CPUs."""
    small = [file for file in found if 0 < file.size <= MAX_DUMP_BYTES]
    for file in found:
        if file.size > MAX_DUMP_BYTES:
            yield Left(file, f"is larger than any dump ({file.size:,} bytes)", FOREIGN)
        elif not file.size:
            yield Left(file, "is empty", "The rank may have died while it wrote it.")
    yield from _in_processes(small)


def _in_processes(found: list[File]) -> Iterator[Read | Left]:
    from concurrent.futures.process import BrokenProcessPool

    if not found:
        return
    workers = max(1, min(os.cpu_count() or 1, 16, len(found) // _BATCH + 1))
    waiting = list(found)
    broken = False
    done = 0
    with _pool(workers) as pool:
        answers = pool.map(_read_file, waiting, chunksize=_BATCH if len(waiting) > 4 * workers else 1)
        try:
            for answer in answers:
                done += 1
                yield answer
        except BrokenProcessPool:
            broken = True
    if broken:
        # One file killed its reader, and which one is not known: give each what is left a process of its own.
        for file in waiting[done:]:
            yield _alone(file)


def _pool(workers: int) -> ProcessPoolExecutor:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Forked: nothing has to be imported again. There are no threads yet that a fork could break.
    return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _bounded)


def _alone(file: File) -> Read | Left:
    from concurrent.futures.process import BrokenProcessPool

    with _pool(1) as pool:
        try:
            return pool.submit(_read_file, file).result()
        except BrokenProcessPool:
            return Left(file, "killed the process that read it", "It is no dump, or not a whole one.")


def _bounded() -> None:
    gc.disable()  # a dump's values have no cycles, and there are hundreds of thousands of them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started us; it ends us
    with open("/proc/self/statm") as text:
        now = int(text.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _read_file(file: File) -> Read | Left:
    try:
        handle = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                return Left(file, "is not a regular file", FOREIGN)
            if status.st_size > MAX_DUMP_BYTES:
                return Left(file, "has become larger than any dump", FOREIGN)
            data = opened.read(status.st_size + 1)
        made = reader.read(data)
    except OSError as error:
        return Left(file, f"cannot be read ({error.strerror})", "Check its permissions.")
    except DumpError as error:
        return Left(file, error.message, error.help)
    except MemoryError:
        return Left(file, "asks for more memory than a dump can need", FOREIGN)
    except RecursionError:
        return Left(file, "is nested deeper than any dump", FOREIGN)
    table = made.table
    return Read(
        file=file,
        recorder=made.recorder,
        operations=tuple(table.operations),
        groups=tuple(table.groups),
        frames=tuple(made.stacks.frames),
        stacks=tuple(made.stacks.stacks),
    )


def newest_of_each(dumps: Iterable[Read]) -> tuple[dict[int, Read], list[Left]]:
    """One dump a rank: where there are two, the one whose newest record is newer."""
    kept: dict[int, Read] = {}
    left = []
    for one in sorted(dumps, key=lambda one: one.file.path):
        other = kept.get(one.file.rank)
        if other is None:
            kept[one.file.rank] = one
            continue
        older, newer = sorted((one, other), key=lambda dump: dump.recorder.newest)
        kept[one.file.rank] = newer
        left.append(Left(older.file, f"is a second dump of rank {one.file.rank}, older than {newer.file.path}"))
    return kept, left
