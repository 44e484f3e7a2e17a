"""The memory of another process, read and written through /proc. No other module does this."""

from __future__ import annotations

import errno
import os

_HIGHEST_ADDRESS = 1 << 63


class Memory:
    """The memory of a process: ``with Memory(pid) as memory: …``. Raises OSError if the process has ended, or if
    opening its memory is not permitted.

    ``tid`` opens it through this thread, which must be stopped. ``write`` opens it for writing as well.
    """

    def __init__(self, pid: int, *, tid: int = 0, write: bool = False) -> None:
        path = f"/proc/{pid}/task/{tid}/mem" if tid else f"/proc/{pid}/mem"
        self._handle = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        """Read exactly ``size`` bytes.

        Raises ProcessLookupError if the process, or the program that it ran, has ended, and OSError if a living
        process has no such memory.
        """
        data = self.read_up_to(address, size)
        if len(data) != size:
            raise OSError(errno.EFAULT, f"{len(data)} of {size} bytes of memory at {address:#x} could be read")
        return data

    def read_up_to(self, address: int, size: int) -> bytes:
        """Read ``size`` bytes, or those before the first page that is not mapped. Raises the same errors."""
        if not 0 <= address < _HIGHEST_ADDRESS:
            raise OSError(errno.EFAULT, f"there is no memory at {address:#x}")
        try:
            data = os.pread(self._handle, size, address)
        except OSError as error:
            if error.errno == errno.EIO:
                raise OSError(errno.EFAULT, f"there is no memory at {address:#x}") from error
            raise
        # An unmapped address is an error. No bytes without an error means that no process uses this memory any more.
        # When a process ends, this happens some time before its state changes.
        if size and not data:
            raise ProcessLookupError(errno.ESRCH, "the process has ended")
        return data

    def write(self, address: int, data: bytes) -> None:
        """Write all of ``data``. Raises the same errors."""
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
    """Read exactly ``size`` bytes of the memory of a process; return no bytes if they cannot be read."""
    try:
        with Memory(pid) as memory:
            return memory.read(address, size)
    except OSError:
        return b""
