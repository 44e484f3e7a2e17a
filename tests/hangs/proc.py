"""Reads /proc. Every function returns None, or an empty value, for a process that has ended."""

from __future__ import annotations

import os
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    state: str
    cpu: float


def stat(pid: int) -> Stat | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return Stat(fields[0], (int(fields[11]) + int(fields[12])) / TICKS)


def ran(pid: int) -> float:
    """The CPU seconds of the main thread."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, ValueError):
        return 0.0


def command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
