"""Copies whole lines from the files of a rank to where its launcher reads its output. A program of its own.

    python -I -S output_relay.py PID START REGISTRATION PREFIX OUT OFFSET ERR OFFSET

Its standard output and error are the originals of the rank's. It ends when the rank and all others that write into the
files have ended, and everything is copied. It is
started with the signals ignored that end a job. Python 3.8, the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import termios
import time

MYPY = False
if MYPY:  # typing is not imported: this starts with each rank
    from typing import Any

MAX_WRITE_BYTES = select.PIPE_BUF  # a pipe takes as much at once, unmixed with what others write
MAX_READ_BYTES = 1 << 20
CUT = b" \\"  # at the end of each piece of a line that is too long for one write
PARTIAL_SECONDS = 5.0  # after which a line without its end is copied: a progress bar, a question
SHORT_PAUSE_SECONDS, LONG_PAUSE_SECONDS = 0.01, 0.2
READ_PAUSE_SECONDS = 0.0005
SUCCESSOR_SECONDS = 10.0  # that the next program of the same task may take to begin


class RelayedFile:
    """One output file of the rank, and the descriptor that its lines go to."""

    def __init__(self, path: str, offset: int, target: int, prefix: bytes) -> None:
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.identity = _identity(os.fstat(self.file))
        self.position = offset
        self.target = target
        self.prefix = prefix
        self.limit = -1  # where the relay of the next program of the same task begins
        self.is_broken = False
        mode = os.fstat(target).st_mode
        self._is_file, self._is_pipe = stat.S_ISREG(mode), stat.S_ISFIFO(mode)
        self._partial: tuple[int, float] = (0, 0.0)  # the length of a line without end, and since when it is there

    def size(self) -> int:
        return os.fstat(self.file).st_size

    def copy(self, end: int, now: float, *, last: bool = False) -> bool:
        """Copy whole lines before the offset ``end``. ``last``: also a line without its end. True: some were copied."""
        if self.size() < self.position:
            self.position = 0  # it was truncated: `echo … > /dev/stdout` in a shell does that to a file
        if self.limit >= 0:
            end = min(end, self.limit)
        data = os.pread(self.file, max(0, min(MAX_READ_BYTES, end - self.position)), self.position)
        whole = data.rfind(b"\n") + 1 or (len(data) if last or len(data) == MAX_READ_BYTES else 0)
        if not whole and not self._is_old(len(data), now):
            return False
        data = data[: whole or len(data)]
        self._partial = (0, now)
        if not data:
            return False
        for piece in pieces(data, self.prefix, 1 << 16 if self._is_file else MAX_WRITE_BYTES, cut=not self._is_file):
            self._write(piece)
        self.position += len(data)
        os.lseek(self.file, self.position, os.SEEK_SET)  # the rank reads there how far its output is copied
        return True

    def _is_old(self, length: int, now: float) -> bool:
        if not length or not self._partial[0]:
            self._partial = (length, now)
        return bool(length) and now - self._partial[1] >= PARTIAL_SECONDS

    def _write(self, data: bytes) -> None:
        while data and not self.is_broken:
            if self._is_pipe:
                self._wait_until_read()
            try:
                data = data[os.write(self.target, data) :]
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(self.target, select.POLLOUT)
                waiting.poll()
            except OSError:
                if not self._is_file:  # its reader has gone
                    self.is_broken = True
                return

    def _wait_until_read(self) -> None:
        """Wait until the pipe is empty. mpirun reads 4096 bytes at once, wherever a line is then: with one write in the
        pipe it reads whole lines, and mixes no others in between."""
        closed = select.poll()
        closed.register(self.target, 0)  # reports POLLERR when the reader has gone
        pause = READ_PAUSE_SECONDS
        while _unread_bytes(self.target) and not closed.poll(0):
            time.sleep(pause)
            pause = min(pause * 1.5, LONG_PAUSE_SECONDS)  # a pager that was stopped does not read for hours


def _unread_bytes(pipe: int) -> int:
    try:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def pieces(data: bytes, prefix: bytes, most: int, *, cut: bool = True) -> list[bytes]:
    """Put lines together to as few writes as possible, of at most ``most`` bytes each, and the prefix before each line.

    A line that is longer is cut into several, or if not ``cut`` it gets a write of its own. Of a line that a progress
    bar has written again and again, the last state counts.
    """
    found, joined = [], b""
    for line in data[:-1].split(b"\n") if data.endswith(b"\n") else data.split(b"\n"):
        state = line.rstrip(b"\r").rpartition(b"\r")[2]
        for part in _parts(state, most - len(prefix) - len(CUT) - 1) if cut else [state]:
            text = prefix + part + b"\n"
            if joined and len(joined) + len(text) > most:
                found.append(joined)
                joined = b""
            joined += text
    if joined:
        found.append(joined)
    return found


def _parts(line: bytes, room: int) -> list[bytes]:
    parts = []
    while len(line) > room:
        end = room
        while end > room - 4 and line[end] & 0xC0 == 0x80:  # not within a character
            end -= 1
        parts.append(line[:end] + CUT)
        line = line[end:]
    return [*parts, line]


class RelayedRank:
    """The process whose output is copied."""

    def __init__(self, pid: int, start: int, registration: str) -> None:
        self.pid = pid
        self._start = start
        self._registration = registration
        self._descriptor = -1
        self._ended = 0.0
        try:
            self._descriptor = os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]  # from 3.9
        except (OSError, AttributeError):
            pass

    def lives(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return fields[0] not in (b"Z", b"X") and int(fields[19]) == self._start
        except (OSError, ValueError, IndexError):
            return False

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until the process ends."""
        if self._descriptor < 0:
            time.sleep(seconds)
            return
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        if ended.poll(int(seconds * 1000)):
            os.close(self._descriptor)
            self._descriptor = -1

    def successor(self) -> dict[str, Any] | None:
        """Return the offsets from which the next program of the task has a relay of its own; None: not known yet."""
        import json  # when the rank has ended: most of the time it is not needed

        self._ended = self._ended or time.monotonic()
        try:
            with open(self._registration, "rb") as file:
                found: dict[str, Any] = json.loads(file.read())
        except (OSError, ValueError):
            return {}
        if found.get("pid") == self.pid and found.get("start") == self._start:
            return {}
        if not found.get("ready") and time.monotonic() - self._ended < SUCCESSOR_SECONDS:
            return None
        offsets: dict[str, Any] = found.get("offsets") or {}
        return offsets


def relay(rank: RelayedRank, files: dict[str, RelayedFile]) -> None:
    """Copy until no process writes any more."""
    pause = SHORT_PAUSE_SECONDS
    while not all(file.is_broken for file in files.values()):
        # In this order: what a rank has written before it was seen alive is not that of the next program.
        ends = {name: file.size() for name, file in files.items()}
        lives = rank.lives()
        following = {} if lives else rank.successor()
        if following is None:
            time.sleep(SHORT_PAUSE_SECONDS)
            continue
        for name, offset in following.items():
            if name in files:
                files[name].limit = int(offset)
        writers = lives or _have_writers([file for file in files.values() if file.limit < 0])
        now = time.monotonic()
        if not lives:
            ends = {name: file.size() for name, file in files.items()}
        copied = [file.copy(ends[name], now) for name, file in files.items()]
        if any(copied):
            pause = SHORT_PAUSE_SECONDS
        elif not writers:
            break
        else:
            pause = min(pause * 2, LONG_PAUSE_SECONDS)
        rank.wait(pause)
    for file in files.values():
        file.copy(file.size(), time.monotonic(), last=True)


def _have_writers(files: list[RelayedFile]) -> bool:
    """Whether the output of another process is one of these files: children of the rank may outlive it."""
    wanted = {file.identity for file in files}
    if not wanted:
        return False
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            for fd in (1, 2):
                try:
                    if _identity(os.stat(f"/proc/{name}/fd/{fd}")) in wanted:
                        return True
                except OSError:
                    continue
    return False


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def main(words: list[str]) -> None:
    """Run as the words of the command line say."""
    rank = RelayedRank(int(words[0]), int(words[1]), words[2])
    prefix = os.fsencode(words[3])
    places = {"out": (words[4], words[5], 1), "err": (words[6], words[7], 2)}
    files = {
        name: RelayedFile(path, int(offset), target, prefix) for name, (path, offset, target) in places.items() if path
    }
    relay(rank, files)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception:  # its standard error is that of the job
        os._exit(1)
