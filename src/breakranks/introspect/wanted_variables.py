"""Which variables of which frames to read in a process: decided outside of it, from the stacks and the sources.

The ranks of a job run the same files, so each is read once. A file that is newer than its process is ignored: the
process may run other lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from breakranks.introspect.library_waits import in_view_of, library_row
from breakranks.introspect.source_analysis import NOTHING, PolledPath, SourceFile, SourceLine
from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.model import Frame

_MAX_SOURCE_BYTES = 1 << 20
_STANDARD = ("/threading.py", "/queue.py", "/concurrent/futures/thread.py", "/concurrent/futures/_base.py",
             "/logging/__init__.py", "/runpy.py", "/multiprocessing/process.py")  # fmt: skip
_LOCKING = re.compile(r"^\s*with\s+[\w.]*(lock|cond|mutex|sem)|\.acquire\(", re.IGNORECASE | re.MULTILINE)


class SeenThread(NamedTuple):
    """A thread of a process, as sampled: frames outermost first."""

    tid: int
    frames: tuple[Frame, ...]


class Questions(NamedTuple):
    """The variables to read in one process, and what its sources tell of the frames that contain them.

    ``polled`` is by function, since a loop that polls is at another line each time.
    """

    asked: dict[str, dict[str, list[str]]]
    lines: dict[tuple[str, str, int], SourceLine]
    polled: dict[tuple[str, str], tuple[PolledPath, ...]]


class SourceCache:
    """The sources of a job, each read once."""

    def __init__(self) -> None:
        self._sources: dict[tuple[int, int, str], SourceFile | None] = {}

    def line(self, pid: int, started: float, frame: Frame) -> SourceLine:
        """What the source tells of the line of a frame."""
        path = in_view_of(pid, frame.file)
        if not path:
            return NOTHING
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return NOTHING
        if status.st_size > _MAX_SOURCE_BYTES or (started and max(status.st_mtime, status.st_ctime) > started + 1):
            return NOTHING
        key = (status.st_dev, status.st_ino, frame.file)
        if key not in self._sources:
            self._sources[key] = _source(path, is_own(frame.file))
        source = self._sources[key]
        return source.line(frame.function, frame.line) if source is not None else NOTHING


def _source(path: str, own: bool) -> SourceFile | None:
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_SOURCE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    # Parsing all of torch would take longer than inspecting the job.
    return SourceFile(text) if own or _LOCKING.search(text) else None


def questions(library: SourceCache, pid: int, started: float, threads: Iterable[SeenThread]) -> Questions:
    """Return the variables to read in a process with these threads."""
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
                    found.asked.setdefault(frame.file, {})[f"{frame.function}:*"] = [file.path for file in line.polled]
            if paths:
                found.asked.setdefault(frame.file, {})[f"{frame.function}:{frame.line}"] = list(dict.fromkeys(paths))
    return found


def _may_hold(frames: tuple[Frame, ...], depth: int) -> bool:
    """Whether a frame of a library may hold a lock that only its source shows. The standard library needs no source:
    its frames are in the table."""
    return depth > 0 and not frames[depth].file.startswith("<") and not frames[depth].file.endswith(_STANDARD)


def _paths(line: SourceLine, own: bool) -> list[str]:
    paths = []
    for path in (*line.waits, *(lock.path for lock in line.held)):
        paths += [path, f"{path}._lock"]  # the lock of a Condition
    paths += line.receivers
    if own:
        paths += [*line.loops, *(file.path for file in line.polled)]
    return paths


def merged(several: Iterable[Questions]) -> dict[str, dict[str, list[str]]]:
    """Merge the questions to several processes."""
    found: dict[str, dict[str, list[str]]] = {}
    for process_questions in several:
        for file, frames in process_questions.asked.items():
            found.setdefault(file, {}).update(frames)
    return found
