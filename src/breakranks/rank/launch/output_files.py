"""Redirects the standard output and error of a rank into files of the run, at the level of file descriptors.

What the rank writes never passes through a process of breakranks: a rank does not wait for one, nor for `run`.
"""

from __future__ import annotations

import fcntl
import io
import os
import stat
import sys
from typing import NamedTuple

from breakranks.jobs.launchers import launcher_of
from breakranks.rank.launch.launch_config import LaunchConfig
from breakranks.rank.launch.launched_rank import command_of, name_of
from breakranks.rank.launch.relay_process import RelayProcess, RelaySource, start_relay

LAUNCHER, OWN_FILE, RELAY, UNTOUCHED = "launcher.out", "file", "relay", "untouched"
MERGED = "merged"  # in the same file as standard output
RELAY_SCRIPT = "output_relay.py"
SUFFIXES = {1: "out", 2: "err"}
_FIRST_SAVED = 200  # numbers of saved descriptors: jobs know the low ones


class OutputStream(NamedTuple):
    """A standard stream of the rank: what it was, and where it goes now. ``saved`` is a copy of the original."""

    fd: int
    kind: str
    path: str = ""
    saved: int = -1
    file: int = -1
    offset: int = 0
    original: tuple[int, int] = (0, 0)  # device and inode
    identity: tuple[int, int] = (0, 0)  # those of the file

    @property
    def is_redirected(self) -> bool:
        return self.file >= 0


class RedirectedOutput(NamedTuple):
    """Both streams of the rank, and the relay that copies what the launcher is to see as well."""

    streams: tuple[OutputStream, ...]
    relay: RelayProcess | None = None


def redirect_output(
    config: LaunchConfig, stem: str, registration: str, prefix: str, *, is_nested: bool = False
) -> RedirectedOutput:
    """Redirect both streams to ``stem``.out and .err, and start a relay where the launcher is to see them as well.

    ``is_nested``: another rank has started the job of this one, and reads what comes through a pipe.
    """
    streams = tuple(_prepared(config, stem, fd, is_nested) for fd in (1, 2))
    sources = {
        stream.fd: RelaySource(stream.path, stream.offset, stream.saved) for stream in streams if stream.kind == RELAY
    }
    relay = start_relay(f"{config.startup}/{RELAY_SCRIPT}", registration, prefix, sources) if sources else None
    try:
        for stream in streams:
            if stream.is_redirected:
                _flush(stream.fd)
                os.dup2(stream.file, stream.fd)
    except OSError:
        restore_output(streams)
        raise
    buffer_by_line([stream.fd for stream in streams if stream.kind != UNTOUCHED])
    return RedirectedOutput(streams, relay)


def restore_output(streams: tuple[OutputStream, ...]) -> None:
    """Let the streams be what they were before."""
    for stream in streams:
        if stream.is_redirected:
            os.dup2(stream.saved, stream.fd)


def close_in_children(streams: tuple[OutputStream, ...]) -> None:
    """Let forked children close the copies. A daemon would keep a pipe open of which a launcher awaits the end."""
    copies = [copy for s in streams if s.is_redirected for copy in ((s.saved, s.original), (s.file, s.identity))]

    def close() -> None:
        for fd, identity in copies:
            if file_identity(fd) == identity:  # else the job has closed it, and used the number again
                os.close(fd)

    os.register_at_fork(after_in_child=close)


def file_identity(fd: int) -> tuple[int, int]:
    """Device and inode of an open file; zeros if it is closed."""
    try:
        found = os.fstat(fd)
        return found.st_dev, found.st_ino
    except OSError:
        return 0, 0


def _prepared(config: LaunchConfig, stem: str, fd: int, is_nested: bool) -> OutputStream:
    path = f"{stem}.{SUFFIXES[fd]}"
    kind = _kind(config, fd, is_nested)
    if kind == OWN_FILE:
        if fd == 2 and _is_same(os.fstat(1), os.fstat(2)):
            return OutputStream(fd, MERGED)
        return OutputStream(fd, kind, _linked(os.readlink(f"/proc/self/fd/{fd}"), path))
    if kind == UNTOUCHED:
        return OutputStream(fd, kind)
    if os.path.islink(path):
        os.unlink(path)  # to the file of a program of the same task: PROGRAM > RESULTS
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    offset = os.lseek(file, 0, os.SEEK_END)
    high = _high(file)
    os.close(file)
    return OutputStream(fd, kind, path, _high(fd), high, offset, file_identity(fd), file_identity(high))


def _kind(config: LaunchConfig, fd: int, is_nested: bool) -> str:
    try:
        original = os.fstat(fd)
    except OSError:  # closed
        return UNTOUCHED
    if _is_null(original):
        return UNTOUCHED  # the user wants no output
    if _is_launcher_file(config, original):
        return LAUNCHER if config.is_here else RELAY
    if is_nested and not stat.S_ISREG(original.st_mode):
        return UNTOUCHED  # that rank may read what its job prints, and expects no prefix
    inherited = _is_of_parent(original)
    if stat.S_ISREG(original.st_mode) and not inherited:
        return OWN_FILE if _is_named(fd, original) else RELAY
    # The parent may be a shell that reads the output of this program: VALUE=$(python …).
    return RELAY if inherited or _is_launcher(os.getppid()) else UNTOUCHED


def _is_launcher_file(config: LaunchConfig, original: os.stat_result) -> bool:
    for name in ("launcher.out", "launcher.err"):
        try:
            if _is_same(os.stat(f"{config.run_folder}/{name}"), original):
                return True
        except OSError:
            continue
    return False


def _is_of_parent(original: os.stat_result) -> bool:
    """Whether the parent has the same file as its output. If that cannot be seen, other ranks may have it as well."""
    seen = False
    for fd in (1, 2):
        try:
            if _is_same(os.stat(f"/proc/{os.getppid()}/fd/{fd}"), original):
                return True
            seen = True
        except PermissionError:
            return _is_launcher(os.getppid())
        except OSError:
            continue
    return not seen


def _is_launcher(pid: int) -> bool:
    return launcher_of(command_of(pid), name_of(pid)) is not None


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino, one.st_rdev) == (other.st_dev, other.st_ino, other.st_rdev)


def _is_null(original: os.stat_result) -> bool:
    return stat.S_ISCHR(original.st_mode) and original.st_rdev == os.stat(os.devnull).st_rdev


def _is_named(fd: int, original: os.stat_result) -> bool:
    try:
        return _is_same(os.stat(os.readlink(f"/proc/self/fd/{fd}")), original)
    except OSError:  # it was deleted
        return False


def _linked(target: str, path: str) -> str:
    """Make a link to the file that the launcher has made for this rank. Return how to find it."""
    try:
        if os.path.islink(path):
            os.unlink(path)
        os.symlink(target, path)
        return path
    except OSError:  # a file system without links
        return target


def _high(fd: int) -> int:
    """A copy of a descriptor with a number that jobs do not use."""
    limit = os.sysconf("SC_OPEN_MAX")  # not from resource: a job may have a module of that name
    first = _FIRST_SAVED if limit < 0 else min(_FIRST_SAVED, limit // 2)
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first)


def _python_stream(fd: int) -> io.TextIOWrapper | None:
    stream = sys.stdout if fd == 1 else sys.stderr
    return stream if isinstance(stream, io.TextIOWrapper) and stream.fileno() == fd else None


def _flush(fd: int) -> None:
    stream = _python_stream(fd)
    if stream is not None:
        stream.flush()


def buffer_by_line(fds: list[int]) -> None:
    """Write each line at once, in Python and in C: the last lines before a crash tell most."""
    for fd in fds:
        stream = _python_stream(fd)
        if stream is not None:
            stream.reconfigure(line_buffering=True)
    if 1 in fds:
        _buffer_c_by_line()


def _buffer_c_by_line() -> None:
    try:
        import ctypes  # some builds of Python lack it

        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)  # _IOLBF
    except Exception:
        pass
