"""The identity of this process: its rank, its job, and whether it is the rank itself or a helper of it."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from breakranks.jobs.launchers import Identity, identities


class RankIdentity(NamedTuple):
    """``job`` names the folder that the ranks of one job on one host share. ``hosts``: whether the job may have ranks
    on other hosts. ``helper``: a child of the rank, not the rank."""

    rank: int
    world: int
    job: str
    host: str
    hosts: bool
    helper: bool
    local_rank: int


_parent: tuple[int, str] | None = None  # rank and job of the process that forked this one, if it was a rank


def who() -> RankIdentity:
    """Return the identity from torch if it is initialised, else from the launcher's variables, else multiprocessing."""
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
    """Whether a process of this user on this host is that rank of this job; None if the variables do not tell."""
    own = _named(os.environ)
    if own is None or own.rank < 0:
        return None
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        other = _named(_environ(int(name)))
        if other is not None and other.rank == rank and other.job == own.job and other.row.name == own.row.name:
            return True
    return False


def remember_parent(rank: int, job: str) -> None:
    """Called in a child that was just forked: it is a helper unless it becomes another rank."""
    global _parent
    _parent = (rank, job)


def _named(environ: Mapping[str, str]) -> Identity | None:
    known = [identity for identity in identities(environ) if identity.is_rank]
    # A rank started by hand inside an allocation: RANK tells its number, the outer launcher's variables do not.
    for identity in known:
        if identity.rank >= 0:
            return identity
    return known[0] if known else None


def _of_torch() -> tuple[int, int] | None:
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        if c10d is not None and c10d.is_initialized():
            return int(c10d.get_rank()), int(c10d.get_world_size())
    except Exception:
        pass
    return None


def _numbered_child() -> int:
    """Return the number of a ``multiprocessing`` child less one: torch.multiprocessing.spawn passes it as the rank."""
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
    # Spawned: its parent has the same rank in its environment, so the parent is the rank.
    parent = _named(_environ(os.getppid()))
    return parent is not None and parent.rank == named.rank and parent.job == named.job


def _environ(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = (item.partition(b"=") for item in file.read().split(b"\0"))
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        return {}
