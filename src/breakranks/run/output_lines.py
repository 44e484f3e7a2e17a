"""From the bytes of an output file to whole lines, many at a time.

Text stays bytes: most of it is shown as it was written. A function looks at single lines only where there is something
in them to look at.
"""

from __future__ import annotations

import re

MAX_LINE_BYTES = 1 << 20  # a longer line is shown in pieces of about this size
PARTIAL_SECONDS = 1.0  # after which a line without its end is shown
PROGRESS_SECONDS = 5.0  # the same for a progress bar, which rewrites its line


class LineAssembler:
    """The lines of one stream. Whatever it returns is whole lines: it ends with a newline, or is empty.

    Of a line that was written several times with ``\\r`` in between, the last state counts. A line that does not end is
    returned after a second, or when it is too long; what follows of it is a line of its own.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._since = 0.0  # when the rest began
        self._begun = False  # a part of this line was returned
        self._is_bar = False  # it was rewritten

    def feed(self, data: bytes, now: float) -> bytes:
        """Add bytes as they were read, and return the lines that are whole now."""
        cut = data.rfind(b"\n") + 1
        if not cut:
            return self._grow(data, now)
        lines = self._rest + data[:cut]
        if self._begun:
            lines = _without_line_end(lines)
        self._rest, self._since, self._begun, self._is_bar = b"", now, False, False
        return _last_states(lines) + self._grow(data[cut:], now)

    def overdue(self, now: float) -> bytes:
        """Return a line that has no end, if it has waited for long enough."""
        if not self._rest:
            return b""
        limit = PROGRESS_SECONDS if self._is_bar else PARTIAL_SECONDS
        return self._part(now) if now - self._since >= limit else b""

    def close(self) -> bytes:
        """Return what is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        return _last_states(rest + b"\n") if rest.strip(b"\r") else b""

    def _grow(self, data: bytes, now: float) -> bytes:
        if data and not self._rest:
            self._since = now
        self._rest += data
        if b"\r" in self._rest:
            self._rest, self._is_bar = _last_state(self._rest), True
        return self._part(now) if len(self._rest) >= MAX_LINE_BYTES else b""

    def _part(self, now: float) -> bytes:
        """Cut the rest after its last whole character."""
        cut = whole_characters(self._rest)
        part, self._rest = self._rest[:cut], self._rest[cut:]
        self._since, self._begun = now, True
        state = part.rstrip(b"\r")
        return state[state.rfind(b"\r") + 1 :] + b"\n" if state else b""


def _without_line_end(lines: bytes) -> bytes:
    """Drop a line end at the beginning: the line before it was returned already."""
    end = lines.index(b"\n") + 1
    return lines[end:] if not lines[:end].strip(b"\r\n") else lines


def _last_states(lines: bytes) -> bytes:
    """Return each line as a terminal shows it in the end: what follows its last carriage return."""
    if b"\r" not in lines:
        return lines
    return b"\n".join(_last_state(line).rstrip(b"\r") if b"\r" in line else line for line in lines.split(b"\n"))


def _last_state(line: bytes) -> bytes:
    """The last state of a line, with the carriage returns after it."""
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


def whole_characters(data: bytes) -> int:
    """Return the length of the data without an incomplete UTF-8 character at its end.

    >>> whole_characters("2 €".encode()[:-1]), whole_characters("2 €".encode()), whole_characters(bytes([0x80] * 9))
    (2, 5, 9)
    """
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if need > back and back < len(data) else len(data)
    return len(data)


_HARMFUL = bytes({*range(32), 127} - {9, 10})
_C1 = re.compile("[\x80-\x9f]")  # some terminals take them for sequences
_SEQUENCE = re.compile(
    r"(\x1b\[[0-9;:]{0,64}m)"  # a colour
    r"|\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # any other command of a terminal
    r"|\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)"  # a title, a link, a key's new meaning
    r"|\x1b[ -/]{0,8}[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_COLOURED_END = re.compile(r"(\x1b\[[0-9;:]*m[^\n]*)$", re.MULTILINE)
_RESET = "\x1b[0m"


def terminal_safe(lines: bytes) -> bytes:
    """Return lines that cannot move the cursor or change the terminal: of all sequences, only colours are left.

    >>> terminal_safe(b"plain\\n"), terminal_safe(b"\\x1b[31mred\\x1b[2J\\x07\\n")
    (b'plain\\n', b'\\x1b[31mred?\\x1b[0m\\n')
    """
    plain = len(lines.translate(None, _HARMFUL)) == len(lines)
    if plain and lines.isascii():
        return lines
    text = lines.decode("utf-8", "replace")
    if plain and not _C1.search(text):
        return text.encode()
    safe = _SEQUENCE.sub(lambda match: match[1] or ("?" if len(match[0]) == 1 else ""), text)
    if "\x1b" in safe:
        safe = _COLOURED_END.sub(lambda match: match[1] + _RESET, safe)
    return safe.encode("utf-8", "replace")
