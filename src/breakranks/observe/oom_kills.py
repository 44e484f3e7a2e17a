"""Processes that the kernel killed because memory ran out, where its log may be read."""

from __future__ import annotations

import os
import re
import time

_KILLED = re.compile(r"Killed process (\d+) \(([^)]*)\)")
_RECENT_SECONDS = 24 * 3600.0
_MAX_KILLS = 20


def recent_kills(seconds: float = _RECENT_SECONDS) -> tuple[tuple[int, str], ...]:
    """The kills of the last day, or of so many seconds, newest last: the pid, and ``process 42 (python3) 94 s ago``.
    Empty if the log is not readable."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ()
    found: list[tuple[int, str]] = []
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        while True:
            try:
                record = os.read(handle, 8192).decode(errors="replace")
            except BlockingIOError:
                break
            except BrokenPipeError:  # the kernel has overwritten this record since
                continue
            match = _KILLED.search(record)
            if match is None:
                continue
            age = now - _seconds(record)
            if age <= seconds:
                found.append((int(match[1]), f"process {match[1]} ({match[2]}) {age:.0f} s ago"))
    except OSError:
        pass
    finally:
        os.close(handle)
    return tuple(found[-_MAX_KILLS:])


def _seconds(record: str) -> float:
    """The time since boot, from the third field of ``6,339,5140900,-;text``, which is in microseconds."""
    try:
        return int(record.split(",", 3)[2]) / 1_000_000
    except (IndexError, ValueError):
        return 0.0
