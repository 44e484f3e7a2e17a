"""Whether this process is a rank of the job that `breakranks run` has started, and which task started it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from breakranks.jobs.launchers import Identity, identities, is_agent, is_helper, is_wrapper, launcher_of

_MAX_ANCESTORS = 64


class LaunchedRank(NamedTuple):
    """A rank, as its launcher numbers it. ``launcher`` is the name of the row in the table of launchers."""

    launcher: str
    rank: int
    world: int
    local_rank: int


class TaskProcess(NamedTuple):
    """The process that started a rank, outside of all that have its variables. ``start`` is in clock ticks."""

    pid: int
    start: int


def launched_rank(environ: Mapping[str, str]) -> LaunchedRank | None:
    """The rank that this process is, or None: a launcher, a helper, a process without a number."""
    if not is_rank_command(command_of(os.getpid())):
        return None
    chosen = _innermost(identities(environ))
    if chosen is None or not chosen.is_rank:
        return None
    rank = chosen.rank
    if rank < 0 and chosen.local_world and chosen.node >= 0:
        rank = chosen.node * chosen.local_world + chosen.local_rank  # lightning has no variable for it
    if rank < 0:
        rank = chosen.local_rank
    return LaunchedRank(chosen.row.name, rank, max(chosen.world, rank + 1), chosen.local_rank)


def is_rank_command(command: tuple[str, ...]) -> bool:
    """Whether a process with this command line may be a rank."""
    return not (launcher_of(command) or is_wrapper(command) or is_helper(command) or is_agent(command))


def passes_on() -> bool:
    """Whether this process only starts another program in its environment, which may be the rank."""
    return is_wrapper(command_of(os.getpid()))


def started_by(names: tuple[str, ...], environ: Mapping[str, str]) -> TaskProcess:
    """The process that started this task: the same for all programs that a script of the task runs in turn."""
    own = {name: environ[name] for name in names if name in environ}
    above = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        parent = _parent_of(above)
        has_own = _has(environ_of(above), own)
        # A subshell is a copy of its shell. A shell does not show there what it exports itself.
        command = command_of(above)
        is_subshell = bool(command) and parent > 0 and command == command_of(parent)
        if parent <= 0 or not (has_own or is_subshell):
            break
        above = parent
    return TaskProcess(above, started(above))


def _has(environ: Mapping[str, str], own: Mapping[str, str]) -> bool:
    return bool(environ) and all(environ.get(name) == value for name, value in own.items())


def _innermost(found: list[Identity]) -> Identity | None:
    """Of nested launchers, the innermost set its variables last: they are in the fewest ancestors."""
    if len({(identity.rank, identity.world, identity.is_rank) for identity in found}) < 2:
        return found[0] if found else None
    heights = [0] * len(found)
    above, growing = os.getppid(), set(range(len(found)))
    for height in range(1, _MAX_ANCESTORS):
        known = identities(environ_of(above)) if above > 0 else []
        growing = {number for number in growing if found[number] in known}
        if not growing:
            break
        for number in growing:
            heights[number] = height
        above = _parent_of(above)
    best = found[heights.index(min(heights))]
    same = [one for one in found if not one.row.by_hand and (one.rank, one.world) == (best.rank, best.world)]
    return same[0] if best.row.by_hand and same else best


# ---- /proc


def command_of(pid: int) -> tuple[str, ...]:
    """The command line of a process, empty if it cannot be read."""
    words = _read(f"/proc/{pid}/cmdline").split(b"\0")
    return tuple(os.fsdecode(word) for word in words[:-1])


def name_of(pid: int) -> str:
    """The name of a process in the kernel."""
    return os.fsdecode(_read(f"/proc/{pid}/comm").strip())


def environ_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with, empty if it cannot be read."""
    pairs = (item.partition(b"=") for item in _read(f"/proc/{pid}/environ").split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}


def started(pid: int) -> int:
    """The start time of a process in clock ticks, 0 if it has ended."""
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in (b"Z", b"X") else 0


def _parent_of(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def _stat_fields(pid: int) -> list[bytes]:
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
