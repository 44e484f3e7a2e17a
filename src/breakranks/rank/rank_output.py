"""What a rank writes: whole lines that say which rank they are of, never in the middle of another's."""

from __future__ import annotations

import io
import os
import sys
import time
from typing import Any

from breakranks.rank import run_dir
from breakranks.rank.rank_identity import RankIdentity, who
from breakranks.rankset import RankSet

_PATIENCE_SECONDS = 0.5  # seconds to wait for another rank's line; one that is stopped in the middle holds nobody up


def say(text: str) -> None:
    """A message of ours to standard error, in one piece."""
    _write(standing_error(), "".join(f"breakranks: {line}\n" for line in text.splitlines()), 2)


def standing_error() -> Any:
    """Standard error as a person sees it; torch puts a buffer in its place while an excepthook runs."""
    return sys.__stderr__ if isinstance(sys.stderr, io.StringIO) else sys.stderr


def print_(
    *values: object,
    sep: str | None = " ",
    end: str | None = "\n",
    file: Any = None,
    flush: bool = True,
    ranks: int | str | None = None,
) -> None:
    """``print`` with the rank before each line, and whole lines: those of other ranks come before or after.

    ``ranks`` prints on these ranks only. ``flush`` is there for the builtin's sake; a line is never kept back.
    """
    me = who()
    if ranks is not None and ranks != "all" and me.rank not in RankSet.parse(str(ranks)):
        return
    text = (" " if sep is None else sep).join(map(str, values)) + ("\n" if end is None else end)
    if not text.endswith("\n"):
        text += "\n"  # half a line cannot be kept whole
    mark = _mark(me)
    stream = sys.stdout if file is None else file
    if stream is not None:
        _write(stream, "".join(f"{mark}{line}\n" for line in text[:-1].split("\n")), 1 if file is None else -1)


def _mark(me: RankIdentity) -> str:
    return f"[{me.host} rank {me.rank}] " if me.hosts else f"[rank {me.rank}] "


def _write(stream: Any, text: str, handle: int) -> None:
    try:
        own = stream.fileno() == handle and isinstance(stream, io.TextIOWrapper)
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        own = False
    if stream is None:
        return
    if not own:  # captured by a notebook, a test or a logger: it gets whole lines, and does with them what it does
        stream.write(text)
        stream.flush()
        return
    stream.flush()
    data = text.encode(stream.encoding or "utf-8", "backslashreplace")
    lock = _lock()
    try:
        while data:
            data = data[_write_some(handle, data) :]
    finally:
        if lock >= 0:
            os.close(lock)


def _write_some(handle: int, data: bytes) -> int:
    try:
        return os.write(handle, data)
    except BlockingIOError:
        time.sleep(0.01)
        return 0
    except OSError:  # nobody reads it any more: not ours to complain about
        return len(data)


def _lock() -> int:
    """A lock that the ranks of a user on this host share; -1 where it cannot be had in time."""
    try:
        path = f"{run_dir.private(run_dir.base())}/print.lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (OSError, run_dir.NotPrivateFolder):
        return -1
    if run_dir.locked(handle, _PATIENCE_SECONDS):
        return handle
    os.close(handle)
    return -1


def standard_error() -> list[int]:
    """Which file the rank's messages go to: ranks that share it need not all say the same."""
    try:
        found = os.fstat(2)
    except OSError:
        return []
    return [found.st_dev, found.st_ino, found.st_rdev]
