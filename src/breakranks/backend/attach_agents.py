"""Injecting agents into the ranks of a job that was not prepared."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from breakranks.backend.agent_payloads import ask_many
from breakranks.backend.found_agents import FoundAgent, LocalAgents
from breakranks.backend.rank_connection import RankConnection
from breakranks.backend.rank_decoder import REMEDY, AttachAnswer, read_answer
from breakranks.inject.inject_errors import GilHeld, InjectError
from breakranks.inject.rank_agent_modules import bundle
from breakranks.jobs.found_jobs import FoundJob, FoundRank
from breakranks.log import Log, milliseconds
from breakranks.observe.sigcont_guard import Watchdog
from breakranks.rank import AGENT_THREAD
from breakranks.rank.run_dir import started
from breakranks.rankset import RankSet

ATTACH_SECONDS = 20.0
_log = Log("backend")
_LEAVE_SECONDS = 10.0  # in which an agent that is unloading has gone, also on a loaded machine


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreachedRank:
    """A rank without an agent: why, and what to do."""

    rank: int
    pid: int
    what: str
    help: str
    gil_held: bool = False  # only its C frames can be shown


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachResult:
    """The agents that run now, and the ranks without one."""

    agents: tuple[FoundAgent, ...]
    unreached: tuple[UnreachedRank, ...]


def attach(job: FoundJob, ranks: RankSet | None = None, *, deadline: float = ATTACH_SECONDS) -> AttachResult:
    """Inject an agent into each rank of a job on this host, or into some of them."""
    chosen = [rank for rank in job.ranks if ranks is None or rank.rank in ranks]
    agents: list[FoundAgent] = []
    unreached: list[UnreachedRank] = []
    began = time.monotonic()
    until = 0.0
    modules = {**bundle(), "module": "breakranks.rank.attach_entry"}
    with Watchdog() as dog:
        while chosen:
            again = []
            each = {rank.pid: {"given": _identity(job, rank)} for rank in chosen}
            replies = ask_many(each, "load_modules", modules, deadline=deadline, each=each, dog=dog)
            until = until or time.monotonic() + _LEAVE_SECONDS
            for rank in chosen:
                reply = replies[rank.pid]
                if isinstance(reply, InjectError):
                    unreached.append(_unreached(rank, reply.message, reply.help, gil_held=isinstance(reply, GilHeld)))
                    continue
                answer = read_answer(reply, AttachAnswer)
                if answer is None:
                    unreached.append(_unreached(rank, "its answer is malformed", REMEDY))
                elif answer.path is not None and _is_reachable(agent := _agent(rank, answer, answer.path)):
                    agents.append(agent)
                elif (answer.leaving or answer.path is not None) and time.monotonic() < until:
                    again.append(rank)
                else:
                    why = answer.refused or "the agent of an earlier attach has not been unloaded yet"
                    unreached.append(_unreached(rank, why, REMEDY))
            chosen = again
            if again:
                time.sleep(0.02)
    for agent in agents:
        _log.debug("agent is in", rank=agent.rank, pid=agent.pid)
    for missed in unreached:
        _log.info("agent is not in", rank=missed.rank, pid=missed.pid, why=missed.what)
    _log.info("attached", agents=len(agents), unreached=len(unreached), ms=milliseconds(began))
    return AttachResult(agents=tuple(agents), unreached=tuple(unreached))


def _is_reachable(found: FoundAgent) -> bool:
    """Whether the agent still accepts connections: it may have been about to unload."""
    try:
        RankConnection(found, LocalAgents()).close()
    except OSError:
        return False
    return True


def wait_for_leave(agents: Iterable[FoundAgent], seconds: float = 1.0) -> None:
    """Wait until injected agents on this host have unloaded themselves. One with another console stays."""
    until = time.monotonic() + seconds
    pids = [agent.pid for agent in agents if agent.attached and not agent.host]
    while any(_has_agent(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.005)


def _has_agent(pid: int) -> bool:
    """Whether the agent's thread runs: it is the last to end."""
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


def _identity(job: FoundJob, rank: FoundRank) -> dict[str, object]:
    """The identity that the agent gets; ``named``: the launcher has set it in the environment."""
    digest = hashlib.blake2s(repr((job.job.key, job.job.started)).encode(), digest_size=4).hexdigest()
    return {
        "rank": rank.rank,
        "world": max(job.job.world_size, rank.rank + 1),
        "job": f"attached-{digest}",
        "named": not job.of_pids,
        "guest": {"pid": os.getpid(), "start": started(os.getpid())},
    }


def _unreached(rank: FoundRank, what: str, help: str, *, gil_held: bool = False) -> UnreachedRank:
    return UnreachedRank(rank=rank.rank, pid=rank.pid, what=what, help=help, gil_held=gil_held)


def _agent(rank: FoundRank, answer: AttachAnswer, path: str) -> FoundAgent:
    return FoundAgent(
        job=answer.job,
        rank=rank.rank,
        pid=rank.pid,
        helper=False,
        path=_seen_from_here(rank.pid, path),
        debugging=False,
        attached=answer.attached,
    )


def _seen_from_here(pid: int, path: str) -> str:
    """The path of a file of the process in this process's mount namespace: the process may be in a container."""
    try:
        if os.stat(f"/proc/{pid}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino:
            return f"/proc/{pid}/root{path}"
        root = os.readlink(f"/proc/{pid}/root")
    except OSError:
        return path
    return path if root == "/" else f"/proc/{pid}/root{path}"
