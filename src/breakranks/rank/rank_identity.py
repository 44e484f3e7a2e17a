"""Who this process is: its rank, its job, and whether it is the rank itself or a helper of it."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from breakranks.jobs.launchers import Identity, identities


class RankIdentity(NamedTuple):
    """``job`` names the folder in which the ranks of one job on one host meet. ``hosts``: whether the job may have
    ranks on other hosts; ``helper``: a child of the rank, not the rank."""

    rank: int
    world: int
    job: str
    host: str
    hosts: bool
    helper: bool
    local_rank: int


_parent: tuple[int, str] | None = None  # rank and job of the process that forked this one, where it was a rank


def who() -> RankIdentity:
    """This process, by torch where it is initialised, else by its launcher's variables, else by multiprocessing."""
    named = _named(os.environ)
    rank, world = _of_torch() or (-1, 0)
    if rank < 0 and named is not None:
        rank, world = named.rank, named.world
    if rank < 0 and named is not None and named.local_world:
        rank = named.node * named.local_world + named.local_rank  # lightning has no variable for it
    if rank < 0:
        rank = max(_numbered_child(), 0)
    job = _job(named)
    return RankIdentity(
        rank=rank,
        world=max(world, rank + 1),
        job=job,
        host=socket.gethostname(),
        hosts=_spans_hosts(named, world),
        helper=_is_helper(rank, job, named),
        local_rank=named.local_rank if named is not None and named.local_rank >= 0 else rank,
    )


def is_here(rank: int) -> bool | None:
    """Whether a process of this user on this host is that rank of our job; None where its variables do not tell."""
    mine = _named(os.environ)
    if mine is None or mine.rank < 0:
        return None
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        found = _named(_environ(int(name)))
        if found is not None and found.rank == rank and found.job == mine.job and found.row.name == mine.row.name:
            return True
    return False


def remember_parent(rank: int, job: str) -> None:
    """In a child that was just forked: it is a helper as long as it does not become another rank."""
    global _parent
    _parent = (rank, job)


def _named(environ: Mapping[str, str]) -> Identity | None:
    found = [one for one in identities(environ) if one.is_rank]
    # A rank started by hand inside an allocation: RANK says which it is, the outer launcher's variables do not.
    for one in found:
        if one.rank >= 0:
            return one
    return found[0] if found else None


def _of_torch() -> tuple[int, int] | None:
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        if c10d is not None and c10d.is_initialized():
            return int(c10d.get_rank()), int(c10d.get_world_size())
    except Exception:
        pass
    return None


def _numbered_child() -> int:
    """The number of a ``multiprocessing`` child less one: what torch.multiprocessing.spawn passes as the rank."""
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    try:
        return int(multiprocessing.current_process()._identity[-1]) - 1
    except (AttributeError, IndexError, TypeError, ValueError):
        return -1


def _job(named: Identity | None) -> str:
    if named is None:
        return f"spawn-{os.getppid()}" if _numbered_child() >= 0 else f"python-{os.getpid()}"
    short = "-".join(value for name, value in named.job if name in named.row.key) or str(os.getppid())
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    known = repr((named.row.name, named.job, attempt, "" if named.job else os.getppid()))
    digest = hashlib.blake2s(known.encode(), digest_size=4).hexdigest()
    return f"{named.row.name}-{_file_name(short)}-{digest}"


def _file_name(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in text)[:32]


def _spans_hosts(named: Identity | None, world: int) -> bool:
    if named is None:
        return False
    if named.local_world:
        return named.local_world < max(named.world, world)
    if named.here:
        return len(named.here) < named.world
    nodes = os.environ.get("SLURM_STEP_NUM_NODES") or os.environ.get("SLURM_NNODES") or ""
    if nodes.isdigit():
        return int(nodes) > 1
    master = os.environ.get("MASTER_ADDR") or os.environ.get("MS_SCHED_HOST") or ""
    return bool(master) and master not in ("localhost", "127.0.0.1", "::1", socket.gethostname())


def _is_helper(rank: int, job: str, named: Identity | None) -> bool:
    if _parent is not None:
        return _parent == (rank, job)
    multiprocessing = sys.modules.get("multiprocessing.process")
    if named is None or multiprocessing is None or multiprocessing.parent_process() is None:
        return False
    # Spawned: its parent was started with the same rank in its environment, so that one is the rank.
    above = _named(_environ(os.getppid()))
    return above is not None and above.rank == named.rank and above.job == named.job


def _environ(pid: int) -> dict[str, str]:
    """The variables that a process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = (item.partition(b"=") for item in file.read().split(b"\0"))
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        return {}
