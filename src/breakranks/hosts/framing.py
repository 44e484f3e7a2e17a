"""Messages as short lines of text, which pass through whatever a site has between two hosts.

    @br1 NONCE WHO SEQ F DATA

``NONCE`` tells the lines of this run from other output of a login shell. ``WHO`` is the host that sends the line or, in
the other direction, receives it (``*``: every host). A message is cut into pieces: ``F`` is ``+`` while more follow and
``.`` on the last. ``SEQ`` numbers the messages of a sender. ``DATA`` is base64: a byte for the kind, then the message.
"""

from __future__ import annotations

import binascii
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

MARK = b"@br1 "
ALL = "*"
# Before an agent runs; to and from an agent; a file of the agent's code; any of these, compressed.
STAGE, MESSAGE, FILE, PACKED = b"j", b"m", b"f", b"z"
MAX_MESSAGE_BYTES = 1 << 28
_LINE = re.compile(rb"@br1 ([0-9a-f]{16}) (\S{1,255}) (\d{1,18}) ([+.]) ([A-Za-z0-9+/=]*)\s*$")
_MAX_LINE_BYTES = 1 << 20
_MAX_STRAY_BYTES = 8_000  # kept of other output
_MIN_PIECE_BYTES = 64  # an empty piece takes memory as well
_MAX_SENDERS = 100_000  # hosts with an incomplete message
_MIN_PACKED_BYTES = 400


class FramedMessage(NamedTuple):
    """A message: the host that sends or receives it, its kind and its body."""

    who: str
    kind: bytes
    body: bytes


class FrameWriter:
    """Writes messages as numbered lines."""

    def __init__(self, nonce: str, piece: int, number: int = 0) -> None:
        self._nonce = nonce.encode()
        self._piece = piece
        self._number = number

    def lines(self, who: str, kind: bytes, body: bytes) -> bytes:
        """Return all lines of one message."""
        whole = kind + body
        if len(whole) > _MIN_PACKED_BYTES and kind not in (FILE, PACKED):
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
    """Reads messages from a stream. ``strays`` is the end of the other text on it."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._rest = b""
        self._parts: dict[bytes, tuple[bytes, list[bytes], int]] = {}
        self._kept = 0  # bytes of incomplete messages
        self.strays = b""
        self.broken = 0  # messages with a missing or damaged piece

    def feed(self, data: bytes) -> Iterator[FramedMessage]:
        """Yield the messages that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            self._stray(self._rest)
            self._rest = b""
        for line in lines:
            message = self._line(line)
            if message is not None:
                yield message

    def _line(self, line: bytes) -> FramedMessage | None:
        at = line.find(MARK)
        fields = _LINE.match(line, at) if at >= 0 else None
        if fields is None or fields[1] != self._nonce:
            self._stray(line + b"\n")
            return None
        if at:
            self._stray(line[:at])
        who, number, more, data = fields[2], fields[3], fields[4] == b"+", fields[5]
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
        size += max(len(pieces[-1]), _MIN_PIECE_BYTES)
        if size + self._kept > MAX_MESSAGE_BYTES or len(self._parts) > _MAX_SENDERS:
            self.broken += 1
            self._parts.clear()  # no host of this version sends that much at a time
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
    """Return a name as one word."""
    return re.sub(rb"[^!-~]", b"?", who.encode("ascii", "replace"))[:255] or b"?"
