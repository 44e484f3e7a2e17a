"""Frames of tracebacks that rich prints in boxes, and of those that IPython prints."""

from __future__ import annotations

import re
from collections.abc import Sequence

from breakranks.logs.traceback_lines import MARK
from breakranks.snapshot.model import Frame

# `╭─── Traceback (most recent call last) ───╮`, with other corners where the terminal has no UTF-8
_BOX_HEADER = re.compile(r"\s*([╭┌┏╔+])[─━═-]+ Traceback \(most recent call last\) [─━═-]+")
_BOX_END = re.compile(r"\s*[╰└┗╚+][─━═-]{3,}")
_BOX_ROW = re.compile(r"\s*[│┃║|] (.*?)\s*[│┃║|]?$")
_BOX_FRAME = re.compile(r"(\S.*?):(\d{1,9}) in (\S.*)$")

_IPYTHON_HEADER = re.compile(r"([^\W\d][\w.]*)\s+Traceback \(most recent call last\)$")
_IPYTHON_FRAMES = (
    re.compile(r"(?P<file>Cell In ?\[\d+\]), line (?P<line>\d{1,9})(?:, in (?P<function>[^(]+))?"),
    re.compile(r"File (?P<file>.+?):(?P<line>\d{1,9})(?:, in (?P<function>[^(]+))?"),
    re.compile(r"(?:File )?(?P<file>\S+|Input In \[\d+\])(?:,)? in (?P<function><[^>]+>|[\w.<>]+)(?:\(.*\))?$"),
)
_IPYTHON_ARROW = re.compile(r"-+> (\d{1,9})")


def is_box_header(text: str) -> bool:
    return MARK in text and _BOX_HEADER.match(text) is not None


def is_box_end(text: str) -> bool:
    return _BOX_END.match(text) is not None


def is_ipython_header(text: str) -> bool:
    return text.endswith(MARK) and _IPYTHON_HEADER.match(text) is not None


def ipython_type(header: str) -> str:
    """The type that the header tells: the line of the exception begins with it."""
    match = _IPYTHON_HEADER.match(header)
    return match[1] if match else ""


def boxed_frames(lines: Sequence[str], at: int) -> tuple[list[Frame], int]:
    """The frames of the box whose header is line ``at``, and the index of the line after the box."""
    frames: list[Frame] = []
    paragraph: list[str] = []
    at += 1
    while at < len(lines) and not is_box_end(lines[at]):
        row = _BOX_ROW.match(lines[at])
        at += 1
        if row is None:
            continue
        text = row[1]
        if text and not text[0].isspace() and text[0] not in "❱╭│╰┌└+|":
            paragraph.append(text)
        elif paragraph:
            frames += _frame_of_paragraph(paragraph)
            paragraph = []
    return frames + _frame_of_paragraph(paragraph), min(at + 1, len(lines))


def _frame_of_paragraph(rows: list[str]) -> list[Frame]:
    """The frame of the rows `/path/file.py:12 in` and `function`: a box that is too narrow wraps them."""
    text = ""
    for row in rows:
        space = " " if text.endswith(" in") or row.startswith("in ") else ""
        text = f"{text}{space}{row}"
    match = _BOX_FRAME.match(text)
    return [Frame(match[3], match[1], int(match[2]))] if match else []


def ipython_frames(lines: Sequence[str], at: int) -> tuple[list[Frame], int]:
    """The frames below IPython's header at line ``at``, and the index of the line of the exception."""
    name = ipython_type(lines[at])
    frames: list[Frame] = []
    at += 1
    while at < len(lines) and not is_ipython_end(lines[at], name):
        text = lines[at]
        arrow = _IPYTHON_ARROW.match(text)
        if arrow and frames and frames[-1].line == 0:
            frames[-1] = frames[-1]._replace(line=int(arrow[1]))
        elif text and not text[0].isspace():
            frames += _ipython_frame(text)
        at += 1
    return frames, at


def is_ipython_end(text: str, name: str) -> bool:
    return text == name or text.startswith(name + ":")


def _ipython_frame(text: str) -> list[Frame]:
    for pattern in _IPYTHON_FRAMES:
        match = pattern.match(text)
        if match is not None:
            parts = match.groupdict()
            return [Frame(parts["function"] or "<module>", parts["file"], int(parts.get("line") or 0))]
    return []
