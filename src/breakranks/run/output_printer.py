"""Standard output and standard error of run: many lines in one write, and never a wait for a slow reader."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import time
from collections.abc import Callable

from breakranks.log import Log

MAX_PENDING_BYTES = 4 << 20  # with more than this, nothing more is read
_DRAIN_SECONDS = 0.1
_MOMENT_SECONDS = 0.02
_PIPE_BYTES = 1 << 20  # a larger pipe takes more in one write
_log = Log("run")


class OutputPrinter:
    """Collects lines, and writes them when ``flush`` is called. Where the reader is slow, the rest waits.

    If nothing can be written any more (``| head`` has ended, the terminal was closed), lines are dropped from then on:
    the job goes on, and its files are whole.
    """

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self._out = _Stream(out)
        # In order, where both are the same terminal or file.
        self._err = self._out if _same(out, err) else _Stream(err)
        self._streams = {self._out, self._err}
        self.is_terminal = os.isatty(out)

    def write(self, stream: str, lines: bytes) -> None:
        """Add whole lines to a stream, ``out`` or ``err``."""
        (self._out if stream == "out" else self._err).add(lines)

    @property
    def is_full(self) -> bool:
        return sum(stream.pending_bytes for stream in self._streams) > MAX_PENDING_BYTES

    @property
    def is_lost(self) -> bool:
        """Whether standard output cannot be written any more."""
        return self._out.is_lost

    def flush(self) -> None:
        """Write as much as is taken without a wait, or within a moment by a reader that is only a little behind."""
        for stream in self._streams:
            stream.write()
            until = time.monotonic() + _MOMENT_SECONDS
            while stream.pending_bytes and (left := until - time.monotonic()) > 0:
                stream.wait(left)
                stream.write()

    def drain(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Write all that is left. A slow reader is waited for as long as ``wanted`` returns True."""
        for stream in self._streams:
            while stream.pending_bytes and wanted():
                stream.wait(_DRAIN_SECONDS)
                stream.write()


class _Stream:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = _nonblocking(descriptor)
        self._lines: list[bytes] = []
        self._rest = memoryview(b"")
        self.pending_bytes = 0
        self.is_lost = False

    def add(self, lines: bytes) -> None:
        if not self.is_lost and lines:
            self._lines.append(lines)
            self.pending_bytes += len(lines)

    def write(self) -> None:
        try:
            while self.pending_bytes:
                if not self._rest:
                    self._rest = memoryview(b"".join(self._lines))
                    self._lines.clear()
                count = os.write(self._descriptor, self._rest)
                self._rest = self._rest[count:]
                self.pending_bytes -= count
        except BlockingIOError:
            pass
        except OSError as error:
            _log.info("output lost", descriptor=self._descriptor, why=str(error))
            self.is_lost, self.pending_bytes = True, 0
            self._lines.clear()
            self._rest = memoryview(b"")

    def wait(self, seconds: float) -> None:
        select.select([], [self._descriptor], [], seconds)


def _nonblocking(descriptor: int) -> int:
    """A second description of a terminal or pipe that does not block. The first one is shared with other processes."""
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) or os.isatty(descriptor):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            opened = os.open(f"/proc/self/fd/{descriptor}", flags)
            if stat.S_ISFIFO(mode):
                _enlarge(opened)
            return opened
    except OSError:  # a terminal that was opened by another user
        pass
    return descriptor


def _enlarge(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (OSError, AttributeError):  # more than the user may have; Python 3.10 does not know the name
        pass


def _same(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:
        return False


def standard_descriptors() -> tuple[int, int]:
    """The descriptors of standard output and standard error, after what Python holds for them was written."""
    sys.stdout.flush()
    sys.stderr.flush()
    return sys.stdout.fileno(), sys.stderr.fileno()
