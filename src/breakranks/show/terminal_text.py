"""How text reaches a terminal: colours, width, and nobody else's control characters.

What is shown is a list of lines, and a line is pieces of text that may each have a style. Only
:func:`render` turns them into characters, so every name that a process chose for itself is cleaned on
the way. No library: this is on the path that must start in a moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from msgspec import Struct

from breakranks.snapshot.command_line import command_line, joined

Piece = str | tuple[str, str]  # text, or (text, style)
Line = Sequence[Piece]

_CODES = {
    "bold": "1",
    "dim": "2",
    "rank": "36",
    "good": "32",
    "warn": "33",
    "bad": "31",
    "verdict": "1;31",
    "own": "1;33",
    "head": "1",
}


class TerminalStyle(Struct, frozen=True, kw_only=True):
    """Everything about the place of output that changes what is shown. ``width`` 0: as wide as it gets."""

    width: int = 0
    color: bool = False
    unicode: bool = True
    full: bool = False
    now: float = 0.0
    folder: str = ""
    home: str = ""


def look_of(stream: TextIO, color: str = "auto", *, full: bool = False, now: float = 0.0) -> TerminalStyle:
    """The look of a real stream: its terminal's width, its encoding, the user's wish for colour."""
    tty = stream.isatty()
    try:
        folder = os.getcwd()
    except OSError:  # the folder was removed under us
        folder = ""
    encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
    return TerminalStyle(
        width=terminal_width(stream) if tty else 0,
        color=wants_color(color, tty, os.environ),
        unicode=encoding.startswith("utf"),
        full=full,
        now=now,
        folder=folder,
        home=os.environ.get("HOME", ""),
    )


def wants_color(asked: str, tty: bool, environ: Mapping[str, str]) -> bool:
    """``--color`` wins, then NO_COLOR, then FORCE_COLOR, then whether a person watches."""
    if asked != "auto":
        return asked == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return tty and environ.get("TERM") != "dumb"


def terminal_width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def render(lines: Iterable[Line], look: TerminalStyle) -> str:
    """Lines to text: cleaned, cut at the width, coloured if wanted. Ends with a newline."""
    return "".join(_render_line(line, look) + "\n" for line in lines)


def _render_line(line: Line, look: TerminalStyle) -> str:
    left = look.width if look.width > 0 else 1 << 30
    parts: list[str] = []
    for piece in line:
        text, style = (piece, "") if isinstance(piece, str) else piece
        text = clean(text)
        if not look.unicode:
            text = ascii_only(text)
        if len(text) > left:
            text = text[: max(0, left - 1)] + ("…" if look.unicode else "~") if left > 0 else ""
            left = 0
        else:
            left -= len(text)
        if text:
            code = _CODES.get(style) if look.color else None
            parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(parts).rstrip()


def clean(text: str) -> str:
    """Text that cannot move a cursor: control characters and broken Unicode become ``?``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


_PLAIN = str.maketrans({"├": "|", "─": "-", "│": "|", "└": "`", "…": "~", "·": "-", "→": "->", "×": "x"})


def ascii_only(text: str) -> str:
    return text.translate(_PLAIN)


def text_of(line: Line) -> str:
    """A line without its styles."""
    return "".join(piece if isinstance(piece, str) else piece[0] for piece in line)


def columns(
    rows: Sequence[Sequence[Piece]], *, right: Sequence[int] = (), indent: str = "  ", width: int = 0
) -> list[Line]:
    """Rows with their cells below one another; ``right`` are the columns of numbers. What is too wide
    loses the beginning of its last cell: of a path, the end is looked for."""
    texts = [[clean(text_of((cell,))) for cell in row] for row in rows]
    widths = [max((len(row[at]) for row in texts if at < len(row)), default=0) for at in range(_most(texts))]
    room = width - len(indent) - sum(widths[:-1]) - 2 * len(widths[:-1]) if width else 0
    lines: list[Line] = []
    for row, plain in zip(rows, texts, strict=True):
        pieces: list[Piece] = [indent]
        for at, cell in enumerate(row):
            if at == len(widths) - 1:
                pieces.append(cut_left(cell, room))
                continue
            pad = " " * (widths[at] - len(plain[at]))
            pieces += [pad, cell, "  "] if at in right else [cell, pad, "  "]
        lines.append(pieces)
    return lines


def cut_left(piece: Piece, room: int) -> Piece:
    """The end of a text that is longer than its room; all of it where the room is not known or tiny."""
    text, style = (piece, "") if isinstance(piece, str) else piece
    if len(text) > room > 8:
        text = "…" + text[len(text) - room + 1 :]
    return (text, style) if style else text


def _most(rows: Sequence[Sequence[str]]) -> int:
    return max((len(row) for row in rows), default=0)


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Break a sentence at spaces; a word that is too long (a path) stays whole."""
    if width <= 0:
        return [indent + text]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        if line and len(indent) + len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, indent + line]


STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
    "?": "unknown",
}
_STATE_STYLES = {"D": "warn", "T": "bad", "t": "warn", "Z": "bad", "X": "bad"}


def state_word(state: str) -> str:
    return STATES.get(state[:1], state or "unknown")


def state_style(state: str) -> str:
    return _STATE_STYLES.get(state[:1], "")


_PACKAGES = ("/site-packages/", "/dist-packages/")


def short_path(path: str, look: TerminalStyle) -> str:
    """A path as a person would say it: within its package, below this folder, below home.

    >>> short_path("/venv/lib/python3.11/site-packages/torch/nn/linear.py", Look())
    'torch/nn/linear.py'
    """
    if look.full or not path.startswith("/"):
        return path
    for mark in _PACKAGES:
        at = path.rfind(mark)
        if at >= 0:
            return path[at + len(mark) :]
    at = path.rfind("/lib/python3.")
    if at >= 0:
        folder, slash, rest = path[at + len("/lib/python3.") :].partition("/")
        if slash and folder.rstrip("t").isdecimal():
            return rest
    for root, sign in ((look.folder, ""), (look.home, "~/")):
        if len(root) > 1 and path.startswith(root.rstrip("/") + "/"):
            return sign + path[len(root.rstrip("/")) + 1 :]
    return path


def command_text(command: Sequence[str], look: TerminalStyle, *, limit: int = 100) -> str:
    """A command line on one line: the script and its arguments; all of it, as it was typed, where all is shown."""
    if look.full:
        return joined(command)
    return command_line([*command[:1], *(short_path(word, look) for word in command[1:])], limit)
