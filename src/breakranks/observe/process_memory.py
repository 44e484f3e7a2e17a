"""The memory of another process, read and written through /proc. The one place where that is done."""

from __future__ import annotations

import errno
import os

_HIGHEST_ADDRESS = 1 << 63


class Memory:
    """``with Memory(pid) as memory: …``. OSError: the process is gone, or its memory must not be opened.

    ``tid``: through this thread, which is held. ``write``: also for writing.
    """

    def __init__(self, pid: int, *, tid: int = 0, write: bool = False) -> None:
        path = f"/proc/{pid}/task/{tid}/mem" if tid else f"/proc/{pid}/mem"
        self._handle = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes.

        ProcessLookupError: the process, or the program that it ran, has ended. OSError: a living process has no
        such memory.
        """
        data = self.read_up_to(address, size)
        if len(data) != size:
            raise OSError(errno.EFAULT, f"{len(data)} of {size} bytes of memory at {address:#x} could be read")
        return data

    def read_up_to(self, address: int, size: int) -> bytes:
        """``size`` bytes, or as many as there are before the first page that is not there. The same errors."""
        if not 0 <= address < _HIGHEST_ADDRESS:
            raise OSError(errno.EFAULT, f"there is no memory at {address:#x}")
        try:
            data = os.pread(self._handle, size, address)
        except OSError as error:
            if error.errno == errno.EIO:
                raise OSError(errno.EFAULT, f"there is no memory at {address:#x}") from error
            raise
        # An address that is not mapped is an error. No error and no bytes: nobody uses this memory any more, which
        # is so at the end of a process some time before its state says so.
        if size and not data:
            raise ProcessLookupError(errno.ESRCH, "the process has ended")
        return data

    def write(self, address: int, data: bytes) -> None:
        """All of ``data``. The same errors."""
        try:
            written = os.pwrite(self._handle, data, address)
        except OSError as error:
            if error.errno == errno.EIO:
                raise OSError(errno.EFAULT, f"there is no memory at {address:#x}") from error
            raise
        if data and not written:
            raise ProcessLookupError(errno.ESRCH, "the process has ended")
        if written != len(data):
            raise OSError(errno.EFAULT, f"{written} of {len(data)} bytes of memory at {address:#x} could be written")

    def close(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def peek(pid: int, address: int, size: int) -> bytes:
    """Exactly ``size`` bytes of a process's memory; empty where they cannot be read, for whatever reason."""
    try:
        with Memory(pid) as memory:
            return memory.read(address, size)
    except OSError:
        return b""
