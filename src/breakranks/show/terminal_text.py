"""How text reaches a terminal: colours, width, and no control characters from outside.

Output is a list of lines. A line is a list of texts that may each have a style. Only :func:`render` turns them into
characters, so every name that a process has chosen is cleaned on the way. This module uses no library for terminals,
because it is imported by commands that must start quickly.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from breakranks.snapshot.process_command import command_line, joined

Piece = str | tuple[str, str]  # text, or (text, style)
Line = Sequence[Piece]

WHOLE = "command"  # the style of a piece that is never cut: a reader copies it
_CODES = {
    "bold": "1",
    WHOLE: "1",
    "dim": "2",
    "rank": "36",
    "good": "32",
    "warn": "33",
    "bad": "31",
    "verdict": "1;31",
    "own": "1;33",
    "head": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalStyle:
    """Everything about the output that changes what is shown. ``width`` 0: unlimited."""

    width: int = 0
    color: bool = False
    unicode: bool = True
    full: bool = False
    now: float = 0.0
    folder: str = ""
    home: str = ""


def look_of(stream: TextIO, color: str = "auto", *, full: bool = False, now: float = 0.0) -> TerminalStyle:
    """Return the style of a stream: the width of its terminal, its encoding, the colour that the user wants."""
    tty = stream.isatty()
    try:
        folder = os.getcwd()
    except OSError:  # the current folder was removed
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
    """Whether to use colours. ``--color`` takes precedence, then NO_COLOR, then FORCE_COLOR, then whether it is a
    terminal."""
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


def render(lines: Iterable[Line], style: TerminalStyle) -> str:
    """Return lines as text: cleaned, with colours if wanted, and cut at the width, except for commands."""
    return "".join(_render_line(line, style) + "\n" for line in lines)


def _render_line(line: Line, terminal: TerminalStyle) -> str:
    left = terminal.width if terminal.width > 0 else 1 << 30
    parts: list[str] = []
    for piece in line:
        text, style = (piece, "") if isinstance(piece, str) else piece
        text = clean(text)
        if not terminal.unicode:
            text = ascii_only(text)
        if len(text) > left and style != WHOLE:
            text = text[: max(0, left - 1)] + ("…" if terminal.unicode else "~") if left > 0 else ""
            left = 0
        else:
            left = max(0, left - len(text))
        if text:
            code = _CODES.get(style) if terminal.color else None
            parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(parts).rstrip()


def clean(text: str) -> str:
    """Return the text with ``?`` for control characters and broken Unicode: it cannot move the cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


_PLAIN = str.maketrans({"├": "|", "─": "-", "│": "|", "└": "`", "…": "~", "·": "-", "→": "->", "×": "x"})


def ascii_only(text: str) -> str:
    return text.translate(_PLAIN)


def text_of(line: Line) -> str:
    """Return a line without its styles."""
    return "".join(piece if isinstance(piece, str) else piece[0] for piece in line)


def columns(
    rows: Sequence[Sequence[Piece]], *, right: Sequence[int] = (), indent: str = "  ", width: int = 0
) -> list[Line]:
    """Return rows with aligned cells; ``right`` are the columns of numbers. A row that is too wide loses the beginning
    of its last cell, because the end of a path matters most."""
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
    """Return the end of a text that is longer than its room; all of it if the room is unknown or tiny."""
    text, style = (piece, "") if isinstance(piece, str) else piece
    if len(text) > room > 8:
        text = "…" + text[len(text) - room + 1 :]
    return (text, style) if style else text


def _most(rows: Sequence[Sequence[str]]) -> int:
    return max((len(row) for row in rows), default=0)


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Break a sentence at spaces. A longer word (a path) stays whole."""
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


def short_path(path: str, style: TerminalStyle) -> str:
    """Return a path relative to its package, to the current folder, or to the home folder.

    >>> short_path("/venv/lib/python3.11/site-packages/torch/nn/linear.py", TerminalStyle())
    'torch/nn/linear.py'
    """
    if style.full or not path.startswith("/"):
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
    for root, sign in ((style.folder, ""), (style.home, "~/")):
        if len(root) > 1 and path.startswith(root.rstrip("/") + "/"):
            return sign + path[len(root.rstrip("/")) + 1 :]
    return path


def command_text(command: Sequence[str], style: TerminalStyle, *, limit: int = 100) -> str:
    """Return a command line on one line: the script and its arguments, or everything as it was typed if all is
    shown."""
    if style.full:
        return joined(command)
    return command_line([*command[:1], *(short_path(word, style) for word in command[1:])], limit)
