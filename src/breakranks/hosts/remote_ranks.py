"""The ranks of other hosts: agents there, links to them, and questions to ranks."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from breakranks.backend.attach_agents import ATTACH_SECONDS, AttachResult, UnreachedRank
from breakranks.backend.evaluate import EvalAnswer, EvalQuestion
from breakranks.backend.rank_connection import FoundAgent
from breakranks.hosts import host_messages
from breakranks.hosts.controller import HostController
from breakranks.hosts.hosts_sampler import jobs_of, names_of, plain
from breakranks.jobs.found_jobs import FoundJob, LocalJobs
from breakranks.jobs.merge_jobs import ClusterJob
from breakranks.rankset import RankSet
from breakranks.snapshot.answer_groups import RankAnswer

T = TypeVar("T")
_EXTRA_SECONDS = 10.0  # seconds that a host has beyond those that its ranks have


class RemoteRanks:
    """What ``backend.rank_connection.LocalAgents`` is to this host, for those of a target."""

    rescan = 2.0

    def __init__(self, controller: HostController, found: dict[str, LocalJobs]) -> None:
        self._controller = controller
        self._found = found
        self._names = names_of(self._controller)

    def find(self) -> list[FoundAgent]:
        asked = dict.fromkeys(self._controller.up, host_messages.ListAgents(0))
        found: list[FoundAgent] = []
        for name, reply in self._controller.ask(asked, self._controller.deadline):
            if isinstance(reply, host_messages.AgentsAttached):
                found += _agents(plain(name), reply)
        return self._named(found)

    def _named(self, found: list[FoundAgent]) -> list[FoundAgent]:
        """One job has one name. Where a launcher gave it none, each host has made one of its own."""
        keys = {
            (host, rank.pid): job.job.key
            for job in jobs_of(self._controller, self._found)
            for host, part in job.parts.items()
            for rank in part.ranks
        }
        names: dict[str, str] = {}
        for one in sorted(found, key=lambda one: one.rank):
            key = keys.get((one.host, one.pid))
            if key is not None:
                names.setdefault(key, one.job)
        return [
            msgspec.structs.replace(one, job=names.get(keys.get((one.host, one.pid), ""), one.job)) for one in found
        ]

    def connect(self, found: FoundAgent) -> socket.socket:
        return self._controller.connect(self._names[found.host], found.path)

    def attach(self, job: ClusterJob, ranks: RankSet | None) -> AttachResult:
        requests = {
            self._names[host]: host_messages.AttachAgents(0, part.job.key, here, ATTACH_SECONDS)
            for host, part, here in _parts(job, ranks)
        }
        agents: list[FoundAgent] = []
        unreached: list[UnreachedRank] = []
        for name, reply in self._controller.ask(requests, 2 * ATTACH_SECONDS + _EXTRA_SECONDS):
            if isinstance(reply, host_messages.AgentsAttached):
                agents += [one for one in _agents(plain(name), reply) if _has(job, plain(name), one.rank)]
                unreached += [one for one in _typed(reply.unreached, UnreachedRank) if _has(job, plain(name), one.rank)]
            else:
                what, help = _why(reply)
                host = plain(name)
                unreached += [_unreached(one.rank, one.pid, what, help) for one in job.parts[host].ranks]
        entered = {one.rank for one in agents} | {one.rank for one in unreached}
        for host, part, here in _parts(job, ranks):
            lost = self._controller.lost.get(self._names[host])
            if lost is not None:
                wanted = RankSet.parse(here) if here is not None else RankSet(one.rank for one in part.ranks)
                some = [one for one in part.ranks if one.rank in wanted and one.rank not in entered]
                unreached += [_unreached(one.rank, one.pid, f"{host}: {lost.what}", lost.remedy) for one in some]
        return AttachResult(agents=tuple(agents), unreached=tuple(unreached))

    def ask(self, job: ClusterJob, ranks: RankSet | None, question: EvalQuestion, seconds: float) -> list[EvalAnswer]:
        takers = RankSet(one.rank for one in job.ranks) if ranks is None else ranks
        asked = msgspec.structs.asdict(question)
        requests = {
            self._names[host]: host_messages.Evaluate(
                id=0, key=part.job.key, ranks=here, takers=str(takers), question=asked, deadline=seconds
            )
            for host, part, here in _parts(job, ranks)
        }
        told: dict[int, EvalAnswer] = {}
        for name, reply in self._controller.ask(requests, seconds + _EXTRA_SECONDS):
            if isinstance(reply, host_messages.Evaluated):
                told |= {one.rank: one for one in _typed(reply.told, EvalAnswer) if _has(job, plain(name), one.rank)}
            else:
                what, help = _why(reply)
                told |= {rank: _silent(rank, what, help) for rank in _ranks(job, plain(name), takers)}
        for host in job.parts:
            lost = self._controller.lost.get(self._names[host])
            for rank in _ranks(job, host, takers):
                if rank not in told and lost is not None:
                    told[rank] = _silent(rank, f"{host}: {lost.what}", lost.remedy)
        return [told[rank] for rank in sorted(told)]

    def key_of(self, agents: Iterable[FoundAgent]) -> str:
        """The key of the job that these agents are of."""
        pids = {(one.host, one.pid) for one in agents}
        for job in jobs_of(self._controller, self._found):
            if any((host, rank.pid) in pids for host, part in job.parts.items() for rank in part.ranks):
                return job.job.key
        return ""

    def end(self, agents: Iterable[FoundAgent]) -> list[str]:
        """End the job that these agents are of; who is still there, as ``host pid``."""
        by_host: dict[str, list[int]] = {}
        for one in agents:
            by_host.setdefault(one.host, []).append(one.pid)
        asked = {self._names[host]: host_messages.EndJob(0, tuple(pids)) for host, pids in by_host.items()}
        left: list[str] = []
        for name, reply in self._controller.ask(asked, 3 * _EXTRA_SECONDS):
            if isinstance(reply, host_messages.JobEnded):
                left += [f"{plain(name)} pid {pid}" for pid in reply.left]
            else:
                left.append(f"{plain(name)}: {_why(reply)[0]}")
        return left


def _parts(job: ClusterJob, ranks: RankSet | None) -> Iterable[tuple[str, FoundJob, str | None]]:
    """The hosts that have some of these ranks, each with its own of them."""
    for host, part in job.parts.items():
        if ranks is None:
            yield host, part, None
        elif here := ranks & RankSet(one.rank for one in part.ranks):
            yield host, part, str(here)


def _ranks(job: ClusterJob, host: str, takers: RankSet) -> list[int]:
    return [one.rank for one in job.parts[host].ranks if one.rank in takers]


def _agents(host: str, reply: host_messages.AgentsAttached) -> list[FoundAgent]:
    return [msgspec.structs.replace(one, host=host) for one in _typed(reply.agents, FoundAgent)]


def _typed(values: Iterable[dict[str, Any]], kind: type[T]) -> list[T]:
    """What a host said, as far as it is what it should be."""
    found = []
    for one in values:
        try:
            found.append(msgspec.convert(one, kind))
        except msgspec.ValidationError:
            continue
    return found


def _has(job: ClusterJob, host: str, rank: int) -> bool:
    """A host speaks for its own ranks."""
    return job.places.get(rank) == host


def _why(reply: host_messages.Reply) -> tuple[str, str]:
    if isinstance(reply, host_messages.RequestFailed):
        return reply.what, reply.help
    return "answered what was not asked", ""


def _unreached(rank: int, pid: int, what: str, help: str) -> UnreachedRank:
    return UnreachedRank(rank=rank, pid=pid, what=what, help=help)


def _silent(rank: int, what: str, help: str) -> EvalAnswer:
    return EvalAnswer(rank=rank, answer=RankAnswer(rank=rank, text=what, error=True), help=help, asked=False)
