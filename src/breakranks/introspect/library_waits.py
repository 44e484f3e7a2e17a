"""Library functions in which a thread waits for an object that only its process can name, and what to read there.

``may_wait`` decides whether anything must be injected. It needs only stacks and sources.
"""

from __future__ import annotations

from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.model import Frame

_THREAD = ("self", "self._name", "self._native_id")
_CONDITION = ("self", "self._lock", "self._flag", "self._value", "self._parties", "self._count", "@ended")
_QUEUE = ("self", "self.maxsize", "self.queue", "@refers self", "@ended")

# (end of the file's path, functions, whether a thread waits there, expressions to read)
Row = tuple[str, tuple[str, ...], bool, tuple[str, ...]]
LIBRARY: tuple[Row, ...] = (
    ("/threading.py", ("wait", "wait_for", "_wait", "acquire", "__enter__"), True, _CONDITION),
    ("/threading.py", ("join", "_wait_for_tstate_lock"), True, _THREAD),
    ("/queue.py", ("get", "put", "join"), True, _QUEUE),
    ("/concurrent/futures/_base.py", ("result", "exception"), True, ("self", "self._state")),
    ("/concurrent/futures/thread.py", ("run",), False, ("self.future",)),
    ("/logging/__init__.py", ("acquire", "handle"), True, ("self", "self.lock")),
    ("<frozen importlib._bootstrap>", ("acquire",), True, ("self", "self.name", "self.owner")),
    ("/torch/utils/data/dataloader.py", ("_next_data", "_get_data", "_try_get_data"), True, ("@loader",)),
    ("/torch/utils/data/_utils/worker.py", ("_worker_loop",), False, ("worker_id", "idx", "index")),
    ("/torch/utils/data/_utils/fetch.py", ("fetch", "<listcomp>"), False, ("possibly_batched_index", "idx")),
    ("/torch/utils/file_baton.py", ("wait",), True, ("self.lock_file_path",)),
    ("/fasteners/process_lock.py", ("acquire", "_acquire", "__enter__", "_do_acquire"), True, ("self.path",)),
    ("/portalocker/utils.py", ("acquire", "__enter__"), True, ("self.filename",)),
    ("/lockfile/", ("acquire", "__enter__"), True, ("self.lock_file",)),
)
# The expressions of those whose values are paths.
FILES = frozenset({"self.lock_file_path", "self.path", "self.filename", "self.lock_file"})
LOCK_FILES = ("/file_baton.py", "/fasteners/process_lock.py", "/portalocker/utils.py", "/lockfile/")
# Lines of the user's own code may wait too: those that take a lock, and those that sleep near one that polls a file.
_TAKES = ("with ", ".acquire(")
_POLLS = ("exists(", "flock(", "lockf(", "O_EXCL", "isfile(", "is_file(")
_NEAR_LINES = 12
_MAX_SOURCE_BYTES = 1 << 20


def library_row(frame: Frame) -> Row | None:
    """The row of the table for a frame, or None."""
    for row in LIBRARY:
        if frame.function in row[1] and (row[0] in frame.file if row[0].endswith("/") else frame.file.endswith(row[0])):
            return row
    return None


def may_wait(pid: int, frames: tuple[Frame, ...]) -> bool:
    """Whether a thread with this stack may wait for a lock, a lock file or a batch of a data loader."""
    if not frames:
        return False
    last = frames[-1]
    for frame in reversed(frames):
        if is_own(frame.file):
            break
        row = library_row(frame)
        # A wait for a lock shows in the innermost frame, a wait for a batch or a file also further out.
        if row is not None and row[2] and (frame is last or "self" not in row[3]):
            return True
    return is_own(last.file) and _may_be_here(in_view_of(pid, last.file), last.line)


def _may_be_here(path: str, line: int) -> bool:
    try:
        with open(path, "rb") as file:
            lines = file.read(_MAX_SOURCE_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return False
    here = "".join(lines[line - 1 : line])
    around = "\n".join(lines[max(0, line - _NEAR_LINES) : line + _NEAR_LINES])
    return any(word in here for word in _TAKES) or ("sleep(" in here and any(word in around for word in _POLLS))


def in_view_of(pid: int, file: str) -> str:
    """The path by which this process can open a source of another process; empty if it is no file."""
    if file.startswith("<") or not file.endswith(".py"):
        return ""
    return f"/proc/{pid}/root{file}" if file.startswith("/") else f"/proc/{pid}/cwd/{file}"
