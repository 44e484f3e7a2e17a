"""Reading a log in blocks of whole lines, in constant memory: plain, compressed, growing, or without any newline."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

from breakranks.errors import UsageError
from breakranks.logs.log_sources import STANDARD_INPUT

BLOCK_BYTES = 2 << 20
MAX_LINE_BYTES = 1 << 20  # a longer line is read in pieces


class _Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class Block(NamedTuple):
    """Lines, and the offset of the first one in its file. Only the last block of a file may end within a line."""

    data: bytes
    position: int


def _gunzip(stream: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=stream, mode="rb")


_PACKED_HEADS: tuple[tuple[bytes, Callable[[BinaryIO], _Readable]], ...] = (
    (b"\x1f\x8b", _gunzip),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"BZh", bz2.BZ2File),
)
_ZSTD_HEAD = b"\x28\xb5\x2f\xfd"
_BROKEN = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, OSError)


class LogFile:
    """One log file. ``problem`` tells why its end could not be read, if that is so."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem = ""
        self.size = 0  # bytes read so far, without compression
        self._rest = b""
        self._stream = _opened(path)
        self.is_plain = isinstance(self._stream, io.BufferedReader)

    def blocks(self) -> Iterator[Block]:
        """Yield what there is to the end of the file."""
        while True:
            data = self._read()
            if not data:
                break
            yield from self._whole_lines(data)
        if self._rest:
            rest, self._rest = self._rest, b""
            yield Block(rest, self.size - len(rest))

    def growth(self) -> Iterator[Block]:
        """Yield whole lines that were written since; the end of an unfinished line is kept for the next call."""
        while data := self._read():
            yield from self._whole_lines(data)

    def close(self) -> None:
        self._stream.close()

    def _read(self) -> bytes:
        """Return the next bytes; none at the end. What comes before a damaged place is kept."""
        pieces: list[bytes] = []
        room = BLOCK_BYTES
        try:
            while room > 0 and (piece := self._stream.read1(room)):
                pieces.append(piece)
                room -= len(piece)
        except _BROKEN as error:
            self.problem = f"{self.path} could be read only up to byte {self.size + BLOCK_BYTES - room:,}: {error}"
        self.size += BLOCK_BYTES - room
        return b"".join(pieces)

    def _whole_lines(self, data: bytes) -> Iterator[Block]:
        start = self.size - len(data) - len(self._rest)
        end = data.rfind(b"\n") + 1
        if end:
            yield Block(self._rest + data[:end] if self._rest else data[:end], start)
            self._rest = data[end:]
        else:
            self._rest += data
            if len(self._rest) >= MAX_LINE_BYTES:
                yield Block(self._rest, start)
                self._rest = b""


class GrowingFile:
    """A log file that is still written: it may be created later, cut to nothing, or replaced by a new one of its name.
    Offsets go on over all of these."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._log: LogFile | None = None
        self._identity = (0, 0)
        self._base = 0

    def growth(self) -> Iterator[Block]:
        """Yield whole lines that were written since the last call."""
        status = _status(self.path)
        if self._log is not None and status is not None and self._is_another(status, self._log):
            yield from self.rest()
        if self._log is None:
            if status is None:
                return
            self._log = LogFile(self.path)
            self._identity = (status.st_dev, status.st_ino)
        for block in self._log.growth():
            yield block._replace(position=block.position + self._base)

    def rest(self) -> Iterator[Block]:
        """Yield all that is left, also the beginning of a line, and close the file."""
        if self._log is not None:
            for block in self._log.blocks():
                yield block._replace(position=block.position + self._base)
            self._base += self._log.size
            self.close()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _is_another(self, status: os.stat_result, log: LogFile) -> bool:
        replaced = (status.st_dev, status.st_ino) != self._identity
        return stat.S_ISREG(status.st_mode) and (replaced or (log.is_plain and status.st_size < log.size))


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path) if path != STANDARD_INPUT else os.fstat(sys.stdin.fileno())
    except OSError:
        return None


def _opened(path: str) -> _Readable:
    """Open a file, or a pipe, which cannot be read twice: its head is looked at in the buffer."""
    try:
        file = io.FileIO(sys.stdin.fileno(), closefd=False) if path == STANDARD_INPUT else io.FileIO(path)
        stream = io.BufferedReader(file, BLOCK_BYTES)
        head = stream.peek(6)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Check the name and the permissions.") from None
    for mark, unpack in _PACKED_HEADS:
        if head.startswith(mark):
            return unpack(stream)
    if head.startswith(_ZSTD_HEAD):
        raise UsageError(f"{path} is compressed with zstd", f"Unpack it: zstd -dc {path} | breakranks logs -")
    return stream
