"""The private folder of a user on a host: a folder a job, in it a socket and an entry a process.

``/tmp/breakranks-UID``, mode 0700, or what BREAKRANKS_RUN names. Nothing is done in one that others could have prepared
or could look into. Files are named by process ids, so a container with ids of its own has a folder of its own:
``/tmp/breakranks-UID-NAMESPACE``. Two containers may share ``/tmp``.
"""

from __future__ import annotations

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
_PATIENCE_SECONDS = 1.0  # seconds for another to be through; one that was stopped in the middle holds nobody up


class NotPrivateFolder(Exception):
    """The folder is not this user's alone. Its text says so, with the remedy."""


def base() -> str:
    """The folder of this user on this host, or in this container."""
    return os.environ.get("BREAKRANKS_RUN") or f"/tmp/breakranks-{os.geteuid()}{_namespace()}"


def _namespace() -> str:
    try:
        number = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return "" if number == _FIRST_NAMESPACE else f"-{number}"


def private(path: str, *, make: bool = True) -> str:
    """``path``, made where it is not there; raises NotPrivate where somebody else could reach into it."""
    if make:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise NotPrivateFolder(
                f"{path} cannot be made: {error.strerror}. Set BREAKRANKS_RUN to a folder of yours."
            ) from None
    try:
        found = os.lstat(path)
    except OSError as error:
        raise NotPrivateFolder(f"{path} cannot be looked at: {error.strerror}.") from None
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivateFolder(
            f"{path} is no folder (a link or a file). Remove it, or set BREAKRANKS_RUN to a folder of yours."
        )
    if found.st_uid != os.geteuid():
        raise NotPrivateFolder(f"{path} belongs to user {found.st_uid}. Set BREAKRANKS_RUN to a folder of yours.")
    if found.st_mode & 0o077:
        raise NotPrivateFolder(f"{path} is open to others (mode {found.st_mode & 0o777:o}). Do: chmod 700 {path}")
    return path


def write(path: str, value: Any) -> None:
    """Replace a file at once: whoever reads it sees the old value or the new one."""
    beside = f"{path}.{os.getpid()}"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, json.dumps(value).encode())
    finally:
        os.close(handle)
    os.rename(beside, path)


def read(path: str) -> Any:
    """What a file holds, or None: it is not there, or not ours."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError):
        return None


def started(pid: int) -> int:
    """When a process was started, in the kernel's ticks; 0 where it is gone. A pid alone may be another's by now."""
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
    """Files of this process in a job's folder go, and the folder with the last of them."""
    for name in names:
        try:
            os.unlink(f"{path}/{name}")
        except OSError:
            pass
    with alone(path) as sure:
        if sure:
            sweep(path, last=True)


@contextmanager
def alone(path: str) -> Iterator[bool]:
    """Nobody else comes to a job's folder meanwhile, or clears it up. False: that cannot be had."""
    handle = -1
    try:
        handle = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        sure = locked(handle, _PATIENCE_SECONDS)
    except OSError:  # gone, or on a file system without locks
        sure = False
    try:
        yield sure
    finally:
        if sure:
            fcntl.flock(handle, fcntl.LOCK_UN)  # said: a child that was forked meanwhile has it open too
        if handle >= 0:
            os.close(handle)


def locked(handle: int, seconds: float) -> bool:
    """Lock an open file; False where that cannot be had in time."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.0005)


def sweep(path: str, *, last: bool = False) -> None:
    """Remove what a job of the same name has left, if nobody else of it lives; ``last``: and its folder.

    Only ``alone``: who comes between the look and the removal would lose its socket, and could not be reached.
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
    """Whether a process other than this one has something in a job's folder."""
    return any(_lives(path, name) for name in os.listdir(path))


def _lives(path: str, name: str) -> bool:
    """Whether the process that a file is of still runs. A socket is there a moment before its entry is."""
    stem, _, kind = name.rpartition(".")
    if kind == "sock" and stem.isdigit():
        return int(stem) != os.getpid() and bool(started(int(stem)))
    entry = read(f"{path}/{name}") if kind == "json" else None
    return isinstance(entry, dict) and not entry.get("ended") and entry.get("pid") != os.getpid() and alive(entry)
