"""What /proc says of a process. Everything returns None, or nothing, for a process that is gone."""

from __future__ import annotations

import os
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    state: str
    parent: int
    session: int
    cpu: float


def stat(pid: int) -> Stat | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return Stat(fields[0], int(fields[1]), int(fields[3]), (int(fields[11]) + int(fields[12])) / TICKS)


def ran(pid: int) -> float:
    """For how many seconds the main thread has run."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, ValueError):
        return 0.0


def alive(pid: int) -> bool:
    """Whether the process still runs or could: a zombie has exited."""
    found = stat(pid)
    return found is not None and found.state not in "ZX"


def command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def environment_has(pid: int, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:
        return False


def everyone() -> dict[int, Stat]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (seen := stat(int(name))) is not None:
            found[int(name)] = seen
    return found


def family(roots: list[int], entry: bytes) -> list[int]:
    """The roots, their descendants and sessions, and whoever carries `entry` in the environment: an orphan of
    the job has lost its parent and may have left the session, and still has the environment."""
    seen = everyone()
    mine = {pid for pid, one in seen.items() if pid in roots or one.session in roots}
    mine |= {pid for pid in seen if environment_has(pid, entry)}
    grew = True
    while grew:
        below = {pid for pid, one in seen.items() if one.parent in mine and pid not in mine}
        mine |= below
        grew = bool(below)
    return sorted(mine - {os.getpid()})
