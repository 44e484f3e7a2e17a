"""The table of breakpoints, one for all threads, and functions for everything that uses it."""

from __future__ import annotations

import bdb
from types import FrameType
from typing import Any

BREAKS: dict[str, list[int]] = {}  # by file, the lines with breakpoints, for the pdb of every thread
SHARED: dict[str, Any] = {}  # other tables that these share, such as `commands`


class BreakpointRefused(Exception):
    """A breakpoint cannot be armed here; the text tells why."""


def next_number() -> int:
    """Return the next number; breakpoints, watchpoints and logpoints share them."""
    table: Any = bdb.Breakpoint
    table.bpbynumber.append(None)
    table.next += 1
    return int(table.next) - 1


def clean(frames: list[FrameType]) -> None:
    """Remove the trace functions of breakranks from frames."""
    for frame in frames:
        if is_ours(frame.f_trace):
            del frame.f_trace
            frame.f_trace_lines = True


def is_ours(tracer: Any) -> bool:
    return str(getattr(tracer, "__module__", "")).startswith("breakranks.")
