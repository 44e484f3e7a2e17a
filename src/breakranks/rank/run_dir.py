"""The private folder of a user on a host: one folder per job, in it a socket and an entry per process.

``/tmp/breakranks-UID``, mode 0700, or the folder in BREAKRANKS_RUN. A folder that another user has made or can access
is refused. Files are named by process ids, so a container with its own ids has its own folder:
``/tmp/breakranks-UID-NAMESPACE``. Containers may share ``/tmp``.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MAX_FILE_BYTES = 1 << 20
_FIRST_NAMESPACE = 0xEFFFFFFC  # the kernel's number for the pid namespace of the machine itself
_STALL_SECONDS = 0.1  # between two looks at a lock; longer means that the process did not run
_LOCK_SECONDS = 1.0  # longest wait for another process, which may be stopped while it has the lock


class NotPrivateFolder(Exception):
    """Another user could access the folder. The text contains the remedy."""


def base() -> str:
    """Return the folder of this user on this host, or in this container."""
    return os.environ.get("BREAKRANKS_RUN") or f"/tmp/breakranks-{os.geteuid()}{_namespace()}"


def _namespace() -> str:
    try:
        number = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return "" if number == _FIRST_NAMESPACE else f"-{number}"


def private(path: str, *, make: bool = True) -> str:
    """Return ``path``, and create it if needed. Raises NotPrivateFolder if another user could access it."""
    if make:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise NotPrivateFolder(
                f"{path} cannot be created: {error.strerror}. Set BREAKRANKS_RUN to a folder that you own."
            ) from None
    try:
        status = os.lstat(path)
    except OSError as error:
        raise NotPrivateFolder(f"{path} cannot be inspected: {error.strerror}.") from None
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivateFolder(
            f"{path} is not a folder (a link or a file). Remove it, or set BREAKRANKS_RUN to a folder that you own."
        )
    if status.st_uid != os.geteuid():
        raise NotPrivateFolder(f"{path} belongs to user {status.st_uid}. Set BREAKRANKS_RUN to a folder that you own.")
    if status.st_mode & 0o077:
        raise NotPrivateFolder(
            f"{path} is open to other users (mode {status.st_mode & 0o777:o}). Run: chmod 700 {path}"
        )
    return path


def write(path: str, value: Any) -> None:
    """Replace a file atomically: a reader gets the old value or the new one."""
    temporary = f"{path}.{os.getpid()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    text = json.dumps(value).encode()
    try:
        if os.write(handle, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)
    os.rename(temporary, path)


def read(path: str) -> Any:
    """Return the content of a file, or None if it does not exist or is not valid JSON."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError):
        return None


def started(pid: int) -> int:
    """Return the start time of a process in kernel ticks, 0 if it has ended. (Its pid may be reused.)"""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def alive(entry: dict[str, Any]) -> bool:
    """Whether the process that wrote this entry on this host still runs."""
    pid, start = entry.get("pid"), entry.get("start")
    return isinstance(pid, int) and bool(start) and started(pid) == start


def remove(path: str, *names: str) -> None:
    """Remove files of this process from a job's folder, and the folder with the last file."""
    for name in names:
        try:
            os.unlink(f"{path}/{name}")
        except OSError:
            pass
    with alone(path) as locked_alone:
        if locked_alone:
            sweep(path, last=True)


@contextmanager
def alone(path: str) -> Iterator[bool]:
    """Keep other processes from entering or removing a job's folder. Yield False if that is not possible."""
    handle = -1
    try:
        handle = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        is_locked = locked(handle, _LOCK_SECONDS)
    except OSError:  # gone, or on a file system without locks
        is_locked = False
    try:
        yield is_locked
    finally:
        if is_locked:
            fcntl.flock(handle, fcntl.LOCK_UN)  # explicitly: a child forked since has the file open as well
        if handle >= 0:
            os.close(handle)


def locked(handle: int, seconds: float) -> bool:
    """Lock an open file. Return False if that takes longer than ``seconds``, without times in which the machine stood
    still: the owner could not release it then."""
    now = time.monotonic()
    until = now + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if now > until:
                return False
            time.sleep(0.0005)
            before, now = now, time.monotonic()
            until += max(0.0, now - before - _STALL_SECONDS)


def sweep(path: str, *, last: bool = False) -> None:
    """Remove what an earlier job of this name has left, if no other process of it lives. ``last``: also the folder.

    Only within ``alone``: a process that enters between the check and the removal would lose its socket.
    """
    try:
        if inhabited(path):
            return
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        if last:
            os.rmdir(path)
    except OSError:  # gone
        pass


def inhabited(path: str) -> bool:
    """Whether another live process has files in a job's folder."""
    return any(_lives(path, name) for name in os.listdir(path))


def _lives(path: str, name: str) -> bool:
    """Whether the process of a file still runs. The socket of a process is created before its entry."""
    stem, _, kind = name.rpartition(".")
    if kind == "sock" and stem.isdigit():
        return int(stem) != os.getpid() and bool(started(int(stem)))
    entry = read(f"{path}/{name}") if kind == "json" else None
    return isinstance(entry, dict) and not entry.get("ended") and entry.get("pid") != os.getpid() and alive(entry)
