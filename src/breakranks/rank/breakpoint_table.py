"""The table of breakpoints, one for all threads, and what belongs to every part that reads it."""

from __future__ import annotations

import bdb
from types import FrameType
from typing import Any

BREAKS: dict[str, list[int]] = {}  # the lines of each file that have breakpoints, for every pdb of ours
SHARED: dict[str, Any] = {}  # and what else these have in common


class BreakpointRefused(Exception):
    """It cannot be done here; its text says why."""


def next_number() -> int:
    """The next of the numbers that breakpoints, watches and probes have in common."""
    table: Any = bdb.Breakpoint
    table.bpbynumber.append(None)
    table.next += 1
    return int(table.next) - 1


def clean(frames: list[FrameType]) -> None:
    """Take what is ours off frames."""
    for frame in frames:
        if is_ours(frame.f_trace):
            del frame.f_trace
            frame.f_trace_lines = True


def is_ours(tracer: Any) -> bool:
    return str(getattr(tracer, "__module__", "")).startswith("breakranks.")
