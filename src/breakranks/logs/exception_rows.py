"""What an exception means: the first row of the table that its type and message fit."""

from __future__ import annotations

from breakranks.logs.exception_table import EXCEPTION_TABLE
from breakranks.logs.known_row import IN_BOTH, IN_EXCEPTION, KnownRow
from breakranks.logs.log_events import Raised
from breakranks.logs.nccl_rows import NCCL_ROWS

ExceptionRow = KnownRow

_ROWS = tuple(row for row in EXCEPTION_TABLE if row.where in (IN_EXCEPTION, IN_BOTH))
_LAST_ERROR = "Last error:"  # torch quotes after it what NCCL last said, since 2.0
MAX_TEXT_CHARS = 8192  # NCCL's and torch's messages hold their reason at the start, and native stacks after it
_NATIVE_STACK = "\nException raised from "


def classify_exception(raised: Raised) -> ExceptionRow | None:
    """The row of an exception; None for one that only the program can explain."""
    text = f"{raised.type}: {raised.message}".split(_NATIVE_STACK, 1)[0][:MAX_TEXT_CHARS]
    if _LAST_ERROR in text and "NCCL" in text:
        said = text.split(_LAST_ERROR, 1)[1]
        for row in NCCL_ROWS:
            if row.pattern.search(said):
                return row
    for row in _ROWS:
        if row.pattern.search(text) and _in_frame(row, raised):
            return row
    return None


def _in_frame(row: KnownRow, raised: Raised) -> bool:
    wanted = row.frame_file
    return wanted is None or any(wanted.search(frame.file) for frame in raised.frames)
