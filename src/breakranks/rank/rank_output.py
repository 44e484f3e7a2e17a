"""Output of a rank: whole lines with the rank before each, never mixed with the line of another rank."""

from __future__ import annotations

import io
import os
import sys
import time
from typing import Any

from breakranks.rank import run_dir
from breakranks.rank.rank_identity import RankIdentity, who
from breakranks.rankset import RankSet

_LOCK_SECONDS = 0.5  # longest wait for the line of another rank, which may be stopped in the middle of it


def say(text: str) -> None:
    """Write a message of breakranks to standard error, in one piece."""
    _write(unbuffered_stderr(), "".join(f"breakranks: {line}\n" for line in text.splitlines()), 2)


def unbuffered_stderr() -> Any:
    """Return the standard error that reaches the user: while an excepthook runs, torch replaces it with a buffer."""
    return sys.__stderr__ if isinstance(sys.stderr, io.StringIO) else sys.stderr


def print_(
    *values: object,
    sep: str | None = " ",
    end: str | None = "\n",
    file: Any = None,
    flush: bool = True,
    ranks: int | str | None = None,
) -> None:
    """Print as the builtin ``print`` does, with the rank before each line. Lines of different ranks are never mixed.

    ``ranks``: print on these ranks only. ``flush`` is accepted as by the builtin; every line is flushed. For example::

        breakranks.print("loss", loss, ranks="0-3")  # [rank 0] loss 0.52
    """
    me = who()
    if ranks is not None and ranks != "all" and me.rank not in RankSet.parse(str(ranks)):
        return
    text = (" " if sep is None else sep).join(map(str, values)) + ("\n" if end is None else end)
    if not text.endswith("\n"):
        text += "\n"  # only whole lines can be kept apart from those of other ranks
    prefix = _prefix(me)
    stream = sys.stdout if file is None else file
    if stream is not None:
        _write(stream, "".join(f"{prefix}{line}\n" for line in text[:-1].split("\n")), 1 if file is None else -1)


def _prefix(me: RankIdentity) -> str:
    return f"[{me.host} rank {me.rank}] " if me.hosts else f"[rank {me.rank}] "


def _write(stream: Any, text: str, handle: int) -> None:
    try:
        own = stream.fileno() == handle and isinstance(stream, io.TextIOWrapper)
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        own = False
    if stream is None:
        return
    if not own:  # captured by a notebook, a test or a logger: it gets whole lines
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
    except OSError:  # no reader: not an error of breakranks
        return len(data)


def _lock() -> int:
    """Take the lock that the ranks of a user on this host share; return -1 where that takes too long."""
    try:
        path = f"{run_dir.private(run_dir.base())}/print.lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (OSError, run_dir.NotPrivateFolder):
        return -1
    if run_dir.locked(handle, _LOCK_SECONDS):
        return handle
    os.close(handle)
    return -1


def standard_error() -> list[int]:
    """Return the identity of the file behind standard error: of the ranks that share one, one prints the notice."""
    try:
        status = os.fstat(2)
    except OSError:
        return []
    return [status.st_dev, status.st_ino, status.st_rdev]
