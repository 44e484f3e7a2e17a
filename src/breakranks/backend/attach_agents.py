"""Bringing an agent into the ranks of a job that nobody prepared."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from breakranks.backend import agent_messages
from breakranks.backend.rank_connection import FoundAgent, LocalAgents, RankConnection
from breakranks.inject.agent_modules import bundle
from breakranks.inject.inject_errors import GilHeld, InjectError
from breakranks.inject.run_in_process import ask_many
from breakranks.jobs.found_jobs import FoundJob, FoundRank
from breakranks.log import Log, milliseconds
from breakranks.observe.watchdog import Watchdog
from breakranks.rank import AGENT_THREAD
from breakranks.rank.run_dir import started
from breakranks.rankset import RankSet

ATTACH_SECONDS = 20.0
_log = Log("backend")
_LEAVE_SECONDS = 10.0  # seconds in which an agent that was leaving has gone, also on a machine that is loaded


class UnreachedRank(Struct, frozen=True, kw_only=True):
    """A rank that could not be entered: why, and what to do."""

    rank: int
    pid: int
    what: str
    help: str
    gil_held: bool = False  # there are C frames to see, and nothing else


class AttachResult(Struct, frozen=True, kw_only=True):
    """The agents that are there now, and the ranks without one."""

    agents: tuple[FoundAgent, ...]
    unreached: tuple[UnreachedRank, ...]


def attach(job: FoundJob, ranks: RankSet | None = None, *, deadline: float = ATTACH_SECONDS) -> AttachResult:
    """An agent in each rank of a job that is on this host, or in some of them."""
    chosen = [rank for rank in job.ranks if ranks is None or rank.rank in ranks]
    agents: list[FoundAgent] = []
    unreached: list[UnreachedRank] = []
    began = time.monotonic()
    until = 0.0
    modules = {**bundle(), "module": "breakranks.rank.attach_entry"}
    with Watchdog() as dog:
        while chosen:
            again = []
            each = {rank.pid: {"given": _who(job, rank)} for rank in chosen}
            found = ask_many(each, "load_modules", modules, deadline=deadline, each=each, dog=dog)
            until = until or time.monotonic() + _LEAVE_SECONDS
            for rank in chosen:
                answer = found[rank.pid]
                if isinstance(answer, InjectError):
                    unreached.append(
                        _unreached(rank, answer.message, answer.help, gil_held=isinstance(answer, GilHeld))
                    )
                    continue
                told = agent_messages.read(answer)
                if told is None:
                    unreached.append(_unreached(rank, "what it answered is not understood", agent_messages.REMEDY))
                elif "path" in told and _answers(here := _found(rank, told)):
                    agents.append(here)
                elif (told.get("leaving") or "path" in told) and time.monotonic() < until:
                    again.append(rank)
                else:
                    why = str(told.get("refused") or "the agent of the last attach does not leave")
                    unreached.append(_unreached(rank, why, "Look from outside instead: breakranks stacks"))
            chosen = again
            if again:
                time.sleep(0.02)
    for agent in agents:
        _log.debug("agent is in", rank=agent.rank, pid=agent.pid)
    for missed in unreached:
        _log.info("agent is not in", rank=missed.rank, pid=missed.pid, why=missed.what)
    _log.info("attached", agents=len(agents), unreached=len(unreached), ms=milliseconds(began))
    return AttachResult(agents=tuple(agents), unreached=tuple(unreached))


def _answers(found: FoundAgent) -> bool:
    """Whether the agent is still there: it may have been about to leave."""
    try:
        RankConnection(found, LocalAgents()).close()
    except OSError:
        return False
    return True


def wait_for_leave(agents: Iterable[FoundAgent], seconds: float = 1.0) -> None:
    """Until the agents have taken everything of ours along; one that somebody else uses too, or cannot yet, stays."""
    until = time.monotonic() + seconds
    ours = [one.pid for one in agents if one.attached and not one.host]
    while any(_has_agent(pid) for pid in ours) and time.monotonic() < until:
        time.sleep(0.005)


def _has_agent(pid: int) -> bool:
    """Whether the agent's thread is there: it ends when all the rest has gone."""
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_comm(pid, tid) == AGENT_THREAD for tid in tids)


def _comm(pid: int, tid: str) -> str:
    try:
        with open(f"/proc/{pid}/task/{tid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _who(job: FoundJob, rank: FoundRank) -> dict[str, object]:
    """What the rank is told of itself; ``named``: its launcher has told it already."""
    digest = hashlib.blake2s(repr((job.job.key, job.job.started)).encode(), digest_size=4).hexdigest()
    return {
        "rank": rank.rank,
        "world": max(job.job.world_size, rank.rank + 1),
        "job": f"attached-{digest}",
        "named": not job.job.key.startswith("pid-"),
        "guest": {"pid": os.getpid(), "start": started(os.getpid())},
    }


def _unreached(rank: FoundRank, what: str, help: str, *, gil_held: bool = False) -> UnreachedRank:
    return UnreachedRank(rank=rank.rank, pid=rank.pid, what=what, help=help, gil_held=gil_held)


def _found(rank: FoundRank, told: dict[str, Any]) -> FoundAgent:
    return FoundAgent(
        job=str(told["job"]),
        rank=rank.rank,
        pid=rank.pid,
        helper=False,
        path=_seen_from_here(rank.pid, str(told["path"])),
        debugging=False,
        attached=bool(told.get("attached")),
    )


def _seen_from_here(pid: int, path: str) -> str:
    """A path of the process's as we can open it: it may be in a container."""
    try:
        if os.stat(f"/proc/{pid}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino:
            return f"/proc/{pid}/root{path}"
        root = os.readlink(f"/proc/{pid}/root")
    except OSError:
        return path
    return path if root == "/" else f"/proc/{pid}/root{path}"
