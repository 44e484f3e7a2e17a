"""Messages as short lines of text, which pass through whatever a site has between two hosts.

    @br1 NONCE WHO SEQ F DATA

``NONCE`` tells the lines of this run from whatever else a login shell prints, ``WHO`` is the host that says it or, on
the way in, is meant (``*``: every one). A message is cut into pieces: ``F`` is ``+`` while more follow and ``.`` on the
last; ``SEQ`` numbers the messages of a sender. ``DATA`` is base64: a byte that says what it is, then the message.
"""

from __future__ import annotations

import binascii
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

MARK = b"@br1 "
ALL = "*"
JSON, MSGPACK, FILE, PACKED = b"j", b"m", b"f", b"z"
MAX_MESSAGE_BYTES = 1 << 28  # bytes of a message
_LINE = re.compile(rb"@br1 ([0-9a-f]{16}) (\S{1,255}) (\d{1,18}) ([+.]) ([A-Za-z0-9+/=]*)\s*$")
_MAX_LINE_BYTES = 1 << 20  # bytes of a line
_MAX_STRAY_BYTES = 8_000  # bytes kept of what is not ours
_PIECE = 64  # bytes that a piece counts for at least
_MAX_SENDERS = 100_000  # hosts in the middle of a message
_WORTH_PACKING_BYTES = 400  # bytes from which packing pays


class FramedMessage(NamedTuple):
    """A message: who said it (or is meant), what kind it is, and its body."""

    who: str
    kind: bytes
    body: bytes


class FrameWriter:
    """Gives messages their lines, and their numbers."""

    def __init__(self, nonce: str, piece: int, number: int = 0) -> None:
        self._nonce = nonce.encode()
        self._piece = piece
        self._number = number

    def lines(self, who: str, kind: bytes, body: bytes) -> bytes:
        """All lines of one message."""
        whole = kind + body
        if len(whole) > _WORTH_PACKING_BYTES and kind not in (FILE, PACKED):
            packed = PACKED + zlib.compress(whole, 3)
            whole = packed if len(packed) < len(whole) else whole
        head = b"%s%s %s %d " % (MARK, self._nonce, _word(who), self._number)
        self._number += 1
        pieces = [whole[at : at + self._piece] for at in range(0, len(whole), self._piece)]
        return b"".join(
            b"%s%s %s\n" % (head, b"." if at == len(pieces) - 1 else b"+", binascii.b2a_base64(piece, newline=False))
            for at, piece in enumerate(pieces)
        )


class FrameReader:
    """Takes bytes as they come, gives messages. ``strays`` is the newest of the text that is not ours."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._rest = b""
        self._parts: dict[bytes, tuple[bytes, list[bytes], int]] = {}
        self._kept = 0  # bytes of messages that are not whole yet
        self.strays = b""
        self.broken = 0  # messages of which a piece was missing or bad

    def feed(self, data: bytes) -> Iterator[FramedMessage]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            self._stray(self._rest)
            self._rest = b""
        for line in lines:
            said = self._line(line)
            if said is not None:
                yield said

    def _line(self, line: bytes) -> FramedMessage | None:
        at = line.find(MARK)
        found = _LINE.match(line, at) if at >= 0 else None
        if found is None or found[1] != self._nonce:
            self._stray(line + b"\n")
            return None
        if at:
            self._stray(line[:at])
        who, number, more, data = found[2], found[3], found[4] == b"+", found[5]
        known, pieces, size = self._parts.pop(who, (number, [], 0))
        self._kept -= size
        if known != number:
            self.broken += 1
            pieces, size = [], 0
        try:
            pieces.append(binascii.a2b_base64(data))
        except binascii.Error:
            self.broken += 1
            return None
        size += max(len(pieces[-1]), _PIECE)
        if size + self._kept > MAX_MESSAGE_BYTES or len(self._parts) > _MAX_SENDERS:
            self.broken += 1
            self._parts.clear()  # nobody honest sends so much at a time
            self._kept = 0
            return None
        if more:
            self._parts[who] = (number, pieces, size)
            self._kept += size
            return None
        return self._whole(who, b"".join(pieces))

    def _whole(self, who: bytes, whole: bytes) -> FramedMessage | None:
        if whole[:1] == PACKED:
            unpacker = zlib.decompressobj()
            try:
                whole = unpacker.decompress(whole[1:], MAX_MESSAGE_BYTES)
            except zlib.error:
                whole = b""
            if unpacker.unconsumed_tail:
                whole = b""
        if not whole:
            self.broken += 1
            return None
        return FramedMessage(who.decode("ascii", "replace"), whole[:1], whole[1:])

    def _stray(self, text: bytes) -> None:
        self.strays = (self.strays + text)[-_MAX_STRAY_BYTES:]


def _word(who: str) -> bytes:
    """A name as one word."""
    return re.sub(rb"[^!-~]", b"?", who.encode("ascii", "replace"))[:255] or b"?"
