"""The private folder through which a process reads the injected code and returns its answer.

The folder is in the file system as the *process* sees it, so that this works with containers, and belongs to the user
of the process. Each name of its path is opened without following links: another user may have placed one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from breakranks.inject.inject_errors import InjectedCodeFailed, InjectRefused

_PLACES = (("dev", "shm"), ("tmp",), ("var", "tmp"))
_PREFIX = "breakranks-inside-"
_CODE, _TAKEN, _ANSWER, _UNFINISHED = "code.py", "taken", "answer", "answer.new"
_SCRIPT = "start.py"
_MAX_ANSWER_BYTES = 64 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STALE_SECONDS = 60.0
_HERE = os.path.dirname(__file__)
# Mailboxes of this process. Their locks must not be tested: a process does not see its own locks, and would lose them
# when it closes the tested file.
_own_names: set[str] = set()

# The Python source in the injected page. Its first name marks the thread (rank/thread_states.py). It never raises, and
# ends if the folder is gone: removing the folder withdraws the request.
_SOURCE = """\
try:
 __breakranks__=1
 import posix
 h=posix.open({path!r},{flags})
 try:exec(posix.read(h,{size}),{{'handle':h}})
 finally:posix.close(h)
except BaseException:pass
"""


class MailboxOwner(NamedTuple):
    """The user and group of the target process, and its pid in its own PID namespace."""

    uid: int
    gid: int
    own_pid: int


def payload(name: str) -> str:
    with open(os.path.join(os.path.dirname(_HERE), "rank", "payloads", f"{name}.py"), encoding="utf-8") as file:
        return file.read()


class Mailbox:
    """One request to one process. ``source`` is the Python code that opens the mailbox in the process."""

    def __init__(
        self, *, pid: int, owner: MailboxOwner, text: str, arguments: Mapping[str, object], limit: float
    ) -> None:
        self._pid = pid
        self._owner = owner
        self._name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        _own_names.add(self._name)
        self._parent, place = _place(pid)
        self._folder = self._code = -1
        try:
            os.mkdir(self._name, 0o700, dir_fd=self._parent)
            self._folder = os.open(self._name, _FOLDER, dir_fd=self._parent)
            self.path = f"/{'/'.join(place)}/{self._name}"
            size = self._write_code(text, arguments, limit)
            self._give(self._folder)
        except BaseException:
            self.close()
            raise
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        self.source = _SOURCE.format(path=f"{self.path}/{_CODE}", flags=flags, size=size)

    def _write_code(self, text: str, arguments: Mapping[str, object], limit: float) -> int:
        with open(os.path.join(_HERE, "runner.py"), encoding="utf-8") as file:
            runner = file.read()
        # The round trip through JSON leaves only plain data, whose repr means the same in the target process.
        plain = json.loads(json.dumps(dict(arguments), allow_nan=False))
        call = f"run(handle, {self.path!r}, {limit!r}, {self._owner.own_pid}, {_MAX_ANSWER_BYTES}, {plain!r}, {text!r})"
        code = f"{runner}\n\ntry:\n    {call}\nfinally:\n    del run, MYPY\n".encode()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._code = os.open(_CODE, flags, 0o600, dir_fd=self._folder)
        # The kernel releases this lock however this process ends. The injected code tests it, and removes the folder
        # if no process holds it.
        os.lockf(self._code, os.F_LOCK, 0)
        rest = memoryview(code)
        while rest:
            rest = rest[os.write(self._code, rest) :]
        self._give(self._code)
        return len(code)

    def script(self, text: str) -> str:
        """Write one more file into the folder, and return its path in the process."""
        handle = os.open(_SCRIPT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._folder)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            self._give(handle)
        return f"{self.path}/{_SCRIPT}"

    def _give(self, handle: int) -> None:
        if os.geteuid() != self._owner.uid:
            os.fchown(handle, self._owner.uid, self._owner.gid)

    def taken(self) -> bool:
        """Whether the injected code has started."""
        try:
            os.stat(_TAKEN, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    def answer(self) -> bytes | None:
        """Return the answer, or None if there is none yet; raise InjectedCodeFailed if the injected code raised."""
        try:
            handle = os.open(_ANSWER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        except FileNotFoundError:
            return None
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if (
                not stat.S_ISREG(status.st_mode)
                or status.st_uid != self._owner.uid
                or status.st_size > _MAX_ANSWER_BYTES + 1
            ):
                raise InjectedCodeFailed(f"the answer file of process {self._pid} has a wrong type, owner or size")
            data = file.read(_MAX_ANSWER_BYTES + 1)
        if data[:1] == b"+":
            return data[1:]
        text = data[1:].decode(errors="replace").strip()
        first = text.partition("\n")[0]
        raise InjectedCodeFailed(f"the code injected into process {self._pid} failed: {first}", text)

    def close(self) -> None:
        """Remove the folder. Injected code that has not started by now never does."""
        # The lock first: code that finishes its answer after this sees that the mailbox is abandoned, and removes it.
        if self._code >= 0:
            os.close(self._code)
            self._code = -1
        if self._folder >= 0:
            _empty(self._folder)
            os.close(self._folder)
            self._folder = -1
        if self._parent >= 0:
            with contextlib.suppress(OSError):
                os.rmdir(self._name, dir_fd=self._parent)
            os.close(self._parent)
            self._parent = -1
        _own_names.discard(self._name)


def _empty(folder: int) -> None:
    # In the order in which the names appear: a file that is renamed during the loop is found under its next name.
    for name in (_SCRIPT, _CODE, _TAKEN, _UNFINISHED, _ANSWER):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _place(pid: int) -> tuple[int, tuple[str, ...]]:
    """Open a folder for temporary files, and return it with its path: one with room for the largest answer, if any."""
    best: tuple[int, int, tuple[str, ...]] | None = None
    for place in _PLACES:
        try:
            handle = _open_below(f"/proc/{pid}/root", place)
        except OSError:
            continue
        status = os.fstatvfs(handle)
        free = 0 if status.f_flag & os.ST_RDONLY else status.f_bavail * status.f_frsize
        if best is not None and free <= best[1]:
            os.close(handle)
            continue
        if best is not None:
            os.close(best[0])
        best = (handle, free, place)
        if free > 2 * _MAX_ANSWER_BYTES:
            break
    if best is None or not best[1]:
        if best is not None:
            os.close(best[0])
        raise InjectRefused(
            f"process {pid} has no folder for its answer",
            "It needs a writable /dev/shm, /tmp or /var/tmp that is not a symbolic link.",
        )
    _sweep(best[0])
    return best[0], best[2]


def _open_below(root: str, names: tuple[str, ...]) -> int:
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            inner = os.open(name, _FOLDER, dir_fd=handle)
        finally:
            os.close(handle)
        handle = inner
    return handle


def _sweep(parent: int) -> None:
    """Remove mailboxes left by a breakranks that was killed before the injected code could clean up."""
    for name in _other_mailboxes(parent):
        with contextlib.suppress(OSError):
            if time.time() - os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime < _STALE_SECONDS:
                continue
            folder = os.open(name, _FOLDER, dir_fd=parent)
            try:
                if not _is_held(folder):
                    _empty(folder)
                    os.rmdir(name, dir_fd=parent)
            finally:
                os.close(folder)


def _other_mailboxes(parent: int) -> Iterator[str]:
    with os.scandir(parent) as entries:
        yield from [entry.name for entry in entries if entry.name.startswith(_PREFIX) and entry.name not in _own_names]


def _is_held(folder: int) -> bool:
    for name in (_CODE, _TAKEN):
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue
        try:
            os.lockf(handle, os.F_TEST, 0)
        except OSError:
            return True
        finally:
            os.close(handle)
    return False
