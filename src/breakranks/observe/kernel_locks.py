"""Which process holds the lock that a process waits for.

There are two kinds: locks of the kernel (flock, fcntl), which /proc/locks lists with holders and waiters, and lock
*files*, whose existence is the lock, and for which waiters poll. A killed process may leave its lock file behind, which
then no process holds.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from breakranks.observe import open_files
from breakranks.snapshot.model import FileLock, OpenFile, Thread

# The usual endings of lock files in user code, as in :mod:`breakranks.observe.safe_locals`.
_ENDINGS = ("lock", ".lck", ".pid")


class KernelLock(NamedTuple):
    """A line of /proc/locks. ``waits``: a request that waits for the lock with the same number."""

    number: int
    kind: str
    pid: int
    inode: int
    waits: bool


def parse(text: str) -> list[KernelLock]:
    """
    >>> parse("1: FLOCK  ADVISORY  WRITE 42 08:01:131 0 EOF")
    [KernelLock(number=1, kind='flock', pid=42, inode=131, waits=False)]
    """
    found = []
    for line in text.splitlines():
        fields = line.split()
        waits = len(fields) > 1 and fields[1] == "->"
        if waits:
            del fields[1]
        if len(fields) < 6 or fields[1] not in ("FLOCK", "POSIX", "OFDLCK"):
            continue
        inode = fields[5].rsplit(":", 1)[-1]
        found.append(
            KernelLock(
                number=int(fields[0].rstrip(":")),
                kind=fields[1].lower(),
                pid=int(fields[4]),
                inode=int(inode),
                waits=waits,
            )
        )
    return found


def kernel_locks() -> list[KernelLock]:
    try:
        with open("/proc/locks") as file:
            return parse(file.read())
    except OSError:
        return []


def waited_for(pid: int, threads: tuple[Thread, ...], table: list[KernelLock]) -> list[FileLock]:
    """The locks that these threads of a process wait for."""
    found = []
    for thread in threads:
        if thread.call is not None and thread.call.name in ("flock", "fcntl") and thread.call.fd >= 0:
            lock = _by_descriptor(pid, thread.call.fd, table)
            if lock is not None:
                found.append(lock)
        for path, kind in _polled(thread.hints):
            found.append(_by_path(pid, path, kind, table))
    return found


def conflicts(pid: int, opened: tuple[OpenFile, ...], table: list[KernelLock]) -> list[FileLock]:
    """Files that a process has open and another process has locked, as retries of a database wait for."""
    held = {lock.inode: lock.pid for lock in table if not lock.waits and lock.pid != pid}
    found = []
    for file in opened if held else ():
        if file.kind != "file":
            continue
        try:
            holder = held.get(os.stat(f"/proc/{pid}/fd/{file.fd}").st_ino, 0)
        except OSError:
            continue
        if holder > 0:
            found.append(
                FileLock(
                    path=file.path,
                    kind="conflict",
                    waiter=pid,
                    holder=holder,
                    holder_command=open_files.command_of(holder),
                    age=_age(file.path),
                )
            )
    return found


def _polled(hints: dict[str, str]) -> list[tuple[str, str]]:
    """The lock files that a thread polls for, by the hints from its frames."""
    found: dict[str, str] = {}
    for key, value in hints.items():
        name = key.rsplit(".", 1)[-1]
        if name == "build_directory":
            found[os.path.join(value, "lock")] = "file"
        elif name in ("lock_filename", "canonical", "filename"):
            found[value] = "file"
        elif value.lower().endswith(_ENDINGS):
            found.setdefault(value, "own")
    return list(found.items())


def _by_descriptor(pid: int, fd: int, table: list[KernelLock]) -> FileLock | None:
    link = f"/proc/{pid}/fd/{fd}"
    try:
        path, inode = os.readlink(link), os.stat(link).st_ino
    except OSError:
        return None
    holders = [lock for lock in table if lock.inode == inode and not lock.waits and lock.pid != pid]
    holder = _holder(holders, path)
    kind = holders[0].kind if holders else "flock"
    return FileLock(
        path=path, kind=kind, waiter=pid, holder=holder, holder_command=open_files.command_of(holder), age=_age(path)
    )


def _by_path(pid: int, path: str, kind: str, table: list[KernelLock]) -> FileLock:
    visible = _in_view_of(pid, path)
    try:
        inode = os.stat(visible).st_ino
    except OSError:
        return FileLock(path=path, kind="gone", waiter=pid)
    if kind == "own" and open_files.has_open(pid, os.path.realpath(path)):
        return FileLock(path=path, kind="gone", waiter=pid)  # it is the holder, not a waiter
    held = [lock for lock in table if lock.inode == inode and not lock.waits and lock.pid != pid]
    if held:
        holder = _holder(held, path)
        return FileLock(
            path=path,
            kind=held[0].kind,
            waiter=pid,
            holder=holder,
            holder_command=open_files.command_of(holder),
            age=_age(visible),
        )
    holder = open_files.owner_of(os.path.realpath(path), skip=pid)
    age = _age(visible)
    if age is None:
        return FileLock(path=path, kind="gone", waiter=pid)  # removed since
    return FileLock(
        path=path, kind=kind, waiter=pid, holder=holder, holder_command=open_files.command_of(holder), age=age
    )


def _holder(holders: list[KernelLock], path: str) -> int:
    """The holder of a lock. /proc/locks has the pid that took the lock, which may have ended and left it to a child."""
    for lock in holders:
        if lock.pid > 0 and os.path.exists(f"/proc/{lock.pid}"):
            return lock.pid
    return open_files.owner_of(path) if holders else 0


def _in_view_of(pid: int, path: str) -> str:
    """The path as this process can open it: the other may be in a container with another root."""
    if not path.startswith("/"):
        return os.path.join(f"/proc/{pid}/cwd", path)
    return f"/proc/{pid}/root{path}"


def _age(path: str) -> float | None:
    try:
        return max(0.0, time.time() - os.stat(path).st_mtime)
    except OSError:
        return None
