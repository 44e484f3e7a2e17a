"""Syntax errors of the script itself: Python prints them without the header of a traceback."""

from __future__ import annotations

import re

from breakranks.logs.log_events import LogLine, Raised, TracebackEvent
from breakranks.snapshot.model import Frame

_PLACE = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d{1,9})\Z')
_ERROR = re.compile(r"(?P<type>SyntaxError|IndentationError|TabError)(?:: (?P<message>.*))?\Z")
_MAX_LINES = 5  # between the place and the error: the source line and its marks


class SyntaxErrorReader:
    """Reads one such error at a time: its lines are written at once, so those of ranks are not mixed."""

    def __init__(self) -> None:
        self._place: re.Match[str] | None = None
        self._first: LogLine | None = None
        self._lines = 0

    @property
    def open(self) -> bool:
        return self._first is not None

    def feed(self, line: LogLine) -> TracebackEvent | None:
        """Read a line; ``open`` tells afterwards whether it belongs to an error that is not complete."""
        place = _PLACE.match(line.text)
        if place is not None:
            self._place, self._first, self._lines = place, line, 0
            return None
        if self._place is None or self._first is None:
            return None
        error = _ERROR.match(line.text)
        first, at = self._first, self._place
        self._lines += 1
        if error is None and line.text[:1].isspace() and self._lines < _MAX_LINES:
            return None
        self._place = self._first = None
        if error is None:
            return None
        raised = Raised(
            type=error["type"], message=error["message"] or "", frames=(Frame("", at["file"], int(at["line"])),)
        )
        return TracebackEvent(raised=raised, line=first, last_position=line.position)
