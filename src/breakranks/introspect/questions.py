"""Which variables of which frames are worth asking for: decided here, outside, from the stacks and the sources.

A job's ranks run the same files, so each is read once. A file that is newer than its process is not believed: its lines
need not be those that run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from breakranks.introspect.library_waits import in_view_of, library_row
from breakranks.introspect.sources import NOTHING, PolledPath, SourceFile, SourceLine
from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.model import Frame

_MAX_SOURCE_BYTES = 1 << 20  # bytes of a source
_STANDARD = ("/threading.py", "/queue.py", "/concurrent/futures/thread.py", "/concurrent/futures/_base.py",
             "/logging/__init__.py", "/runpy.py", "/multiprocessing/process.py")  # fmt: skip
_LOCKING = re.compile(r"^\s*with\s+[\w.]*(lock|cond|mutex|sem)|\.acquire\(", re.IGNORECASE | re.MULTILINE)


class SeenThread(NamedTuple):
    """A thread of a process as it was seen: frames outermost first."""

    tid: int
    frames: tuple[Frame, ...]


class Questions(NamedTuple):
    """What to ask of one process, and what its sources say of the frames that were asked about."""

    asked: dict[str, dict[str, list[str]]]
    lines: dict[tuple[str, str, int], SourceLine]
    polled: dict[tuple[str, str], tuple[PolledPath, ...]]  # by function: a loop that polls is at another line each time


class SourceCache:
    """The sources of a job, each read once."""

    def __init__(self) -> None:
        self._sources: dict[tuple[int, int, str], SourceFile | None] = {}

    def line(self, pid: int, started: float, frame: Frame) -> SourceLine:
        """What the source of a process says of one of its frames."""
        seen = in_view_of(pid, frame.file)
        if not seen:
            return NOTHING
        try:
            status = os.stat(seen)
        except (OSError, ValueError):
            return NOTHING
        if status.st_size > _MAX_SOURCE_BYTES or (started and max(status.st_mtime, status.st_ctime) > started + 1):
            return NOTHING
        key = (status.st_dev, status.st_ino, frame.file)
        if key not in self._sources:
            self._sources[key] = _source(seen, is_own(frame.file))
        source = self._sources[key]
        return source.line(frame.function, frame.line) if source is not None else NOTHING


def _source(path: str, own: bool) -> SourceFile | None:
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_SOURCE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    # To read all of torch would take longer than to look at the job.
    return SourceFile(text) if own or _LOCKING.search(text) else None


def questions(library: SourceCache, pid: int, started: float, threads: Iterable[SeenThread]) -> Questions:
    """What to ask of a process whose threads stand so."""
    found = Questions({}, {}, {})
    for thread in threads:
        innermost = len(thread.frames) - 1
        for depth, frame in enumerate(thread.frames):
            key = (frame.file, frame.function, frame.line)
            row = library_row(frame)
            paths = list(row[3]) if row is not None else []
            own = is_own(frame.file)
            if row is None and (own or depth == innermost or _may_hold(thread.frames, depth)):
                line = found.lines.get(key) or library.line(pid, started, frame)
                found.lines[key] = line
                paths += _paths(line, own)
                if own and line.polled:
                    found.polled[key[:2]] = line.polled
                    found.asked.setdefault(frame.file, {})[f"{frame.function}:*"] = [one.path for one in line.polled]
            if paths:
                found.asked.setdefault(frame.file, {})[f"{frame.function}:{frame.line}"] = list(dict.fromkeys(paths))
    return found


def _may_hold(frames: tuple[Frame, ...], depth: int) -> bool:
    """Whether it is a frame of a library that may have a lock of which only its source tells; those of the standard
    library say themselves whose they are."""
    return depth > 0 and not frames[depth].file.startswith("<") and not frames[depth].file.endswith(_STANDARD)


def _paths(line: SourceLine, own: bool) -> list[str]:
    paths = []
    for path in (*line.waits, *(one.path for one in line.held)):
        paths += [path, f"{path}._lock"]  # of a Condition, the lock in it
    paths += line.receivers
    if own:
        paths += [*line.loops, *(one.path for one in line.polled)]
    return paths


def merged(several: Iterable[Questions]) -> dict[str, dict[str, list[str]]]:
    """The questions to several processes as one."""
    found: dict[str, dict[str, list[str]]] = {}
    for one in several:
        for file, frames in one.asked.items():
            found.setdefault(file, {}).update(frames)
    return found
