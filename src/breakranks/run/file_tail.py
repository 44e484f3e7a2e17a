"""A file that grows, read from its beginning in big pieces."""

from __future__ import annotations

import os
from pathlib import Path

READ_BYTES = 1 << 20


class FileTail:
    """The bytes of a file that are new since the last read. The file may appear later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._position = 0

    def read(self) -> bytes:
        """Return the next bytes, at most READ_BYTES; none if there are no more now."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            data = os.pread(self._descriptor, READ_BYTES, self._position)
            if not data and os.fstat(self._descriptor).st_size < self._position:
                self._position = 0  # it was truncated
                data = os.pread(self._descriptor, READ_BYTES, 0)
        except OSError:  # not there yet, or its file system is not reachable now
            return b""
        self._position += len(data)
        return data

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
