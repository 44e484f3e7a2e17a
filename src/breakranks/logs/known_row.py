"""A row of the tables of known lines and exceptions: how to recognise the text, what it means, what to try."""

from __future__ import annotations

import re
from dataclasses import dataclass

WORKLOAD, INFRASTRUCTURE, EITHER = "workload", "infrastructure", "either"
YES, NO, PERHAPS = "yes", "no", "perhaps"
EXCEPTION, SIGNAL, OUT_OF_MEMORY, TIMEOUT, EXIT, LAUNCHER = (
    "exception",
    "signal",
    "out-of-memory",
    "timeout",
    "exit",
    "launcher",
)

# Where the pattern of a row is tried: on any line of a log, on the text "type: message" of an exception, on both, or on
# what NCCL says (a line with "NCCL WARN", or the message of an exception that quotes NCCL's last error).
IN_LINE, IN_EXCEPTION, IN_BOTH, IN_NCCL = "line", "exception", "both", "nccl"

MAX_SEARCHED_CHARS = 4096
_HALF = MAX_SEARCHED_CHARS // 2


def searchable(text: str) -> str:
    """A line as the patterns get it: of a longer one only its ends, where messages are (progress bars, then an error).

    Patterns cost more than linear time on hostile text.
    """
    return text if len(text) <= MAX_SEARCHED_CHARS else f"{text[:_HALF]} … {text[-_HALF:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRow:
    """One row. The named groups of ``pattern`` become the values of the event; a group ``rank`` tells its rank.

    ``restart``: whether a restart without a change could help. ``meaning`` and ``advice`` are sentences for the user.
    ``frame_file``: for an exception, a frame must lie in a file that this pattern finds.
    """

    key: str
    pattern: re.Pattern[str]
    role: str
    area: str
    restart: str
    kind: str
    meaning: str
    advice: str
    where: str = IN_LINE
    frame_file: re.Pattern[str] | None = None


def known_row(
    key: str,
    pattern: str,
    labels: tuple[str, str, str, str],
    meaning: str,
    advice: str,
    *,
    where: str = IN_LINE,
    frame_file: str = "",
) -> KnownRow:
    """A row from its parts. ``labels`` are role, area, restart and kind."""
    role, area, restart, kind = labels
    return KnownRow(
        key=key,
        pattern=re.compile(pattern),
        role=role,
        area=area,
        restart=restart,
        kind=kind,
        meaning=meaning,
        advice=advice,
        where=where,
        frame_file=re.compile(frame_file) if frame_file else None,
    )


def exception_row(
    key: str,
    pattern: str,
    labels: tuple[str, str, str, str],
    meaning: str,
    advice: str,
    *,
    where: str = IN_EXCEPTION,
    frame_file: str = "",
) -> KnownRow:
    """A row of the table of exceptions. Its pattern is tried on ``Type: message``."""
    return known_row(key, pattern, labels, meaning, advice, where=where, frame_file=frame_file)
