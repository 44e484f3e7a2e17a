"""The ranks of other hosts: their agents, links to them, and expressions to evaluate in them."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, TypeVar

import msgspec

from breakranks.backend.attach_agents import ATTACH_SECONDS, AttachResult, UnreachedRank
from breakranks.backend.evaluate import EvalAnswer, EvalQuestion
from breakranks.backend.found_agents import FoundAgent
from breakranks.hosts import host_messages
from breakranks.hosts.controller import HostController
from breakranks.hosts.hosts_sampler import jobs_of, names_of, plain
from breakranks.jobs.found_jobs import FoundJob, LocalJobs
from breakranks.jobs.merge_jobs import ClusterJob
from breakranks.rankset import RankSet
from breakranks.snapshot.rank_answer import RankAnswer

T = TypeVar("T")
_EXTRA_SECONDS = 10.0  # for a host, on top of the timeout of its ranks


class RemoteRanks:
    """The agents in the ranks of a target of hosts. ``backend.found_agents.LocalAgents`` has those of this host."""

    rescan = 2.0

    def __init__(self, controller: HostController, found: dict[str, LocalJobs]) -> None:
        self._controller = controller
        self._found = found
        self._names = names_of(self._controller)

    def find(self) -> list[FoundAgent]:
        requests = dict.fromkeys(self._controller.up, host_messages.ListAgents(0))
        agents: list[FoundAgent] = []
        for name, reply in self._controller.ask(requests, self._controller.deadline):
            if isinstance(reply, host_messages.AgentsAttached):
                agents += _agents(plain(name), reply)
        return self._named(agents)

    def _named(self, agents: list[FoundAgent]) -> list[FoundAgent]:
        """Give the agents of one job one name. If the launcher gave it none, each host has made up its own."""
        keys = {
            (host, rank.pid): job.job.key
            for job in jobs_of(self._controller, self._found)
            for host, part in job.parts.items()
            for rank in part.ranks
        }
        names: dict[str, str] = {}
        for agent in sorted(agents, key=lambda agent: agent.rank):
            key = keys.get((agent.host, agent.pid))
            if key is not None:
                names.setdefault(key, agent.job)
        return [replace(agent, job=names.get(keys.get((agent.host, agent.pid), ""), agent.job)) for agent in agents]

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
                agents += [agent for agent in _agents(plain(name), reply) if _has(job, plain(name), agent.rank)]
                missed = _typed(reply.unreached, UnreachedRank)
                unreached += [entry for entry in missed if _has(job, plain(name), entry.rank)]
            else:
                what, help = _why(reply)
                unreached += [_unreached(rank.rank, rank.pid, what, help) for rank in job.parts[plain(name)].ranks]
        answered = {agent.rank for agent in agents} | {entry.rank for entry in unreached}
        for host, part, here in _parts(job, ranks):
            lost = self._controller.lost.get(self._names[host])
            if lost is not None:
                wanted = RankSet.parse(here) if here is not None else RankSet(rank.rank for rank in part.ranks)
                silent = [rank for rank in part.ranks if rank.rank in wanted and rank.rank not in answered]
                unreached += [_unreached(rank.rank, rank.pid, f"{host}: {lost.what}", lost.remedy) for rank in silent]
        return AttachResult(agents=tuple(agents), unreached=tuple(unreached))

    def ask(self, job: ClusterJob, ranks: RankSet | None, question: EvalQuestion, seconds: float) -> list[EvalAnswer]:
        takers = RankSet(rank.rank for rank in job.ranks) if ranks is None else ranks
        fields = asdict(question)
        requests = {
            self._names[host]: host_messages.Evaluate(
                id=0, key=part.job.key, ranks=here, takers=str(takers), question=fields, deadline=seconds
            )
            for host, part, here in _parts(job, ranks)
        }
        answers: dict[int, EvalAnswer] = {}
        for name, reply in self._controller.ask(requests, seconds + _EXTRA_SECONDS):
            if isinstance(reply, host_messages.Evaluated):
                typed = _typed(reply.told, EvalAnswer)
                answers |= {answer.rank: answer for answer in typed if _has(job, plain(name), answer.rank)}
            else:
                what, help = _why(reply)
                answers |= {rank: _silent(rank, what, help) for rank in _ranks(job, plain(name), takers)}
        for host in job.parts:
            lost = self._controller.lost.get(self._names[host])
            for rank in _ranks(job, host, takers):
                if rank not in answers and lost is not None:
                    answers[rank] = _silent(rank, f"{host}: {lost.what}", lost.remedy)
        return [answers[rank] for rank in sorted(answers)]

    def key_of(self, agents: Iterable[FoundAgent]) -> str:
        """Return the key of the job that these agents belong to."""
        pids = {(agent.host, agent.pid) for agent in agents}
        for job in jobs_of(self._controller, self._found):
            if any((host, rank.pid) in pids for host, part in job.parts.items() for rank in part.ranks):
                return job.job.key
        return ""

    def end(self, agents: Iterable[FoundAgent]) -> list[str]:
        """End the job that these agents belong to; return the processes that remain, as ``host pid``."""
        by_host: dict[str, list[int]] = {}
        for agent in agents:
            by_host.setdefault(agent.host, []).append(agent.pid)
        requests = {self._names[host]: host_messages.EndJob(0, tuple(pids)) for host, pids in by_host.items()}
        left: list[str] = []
        for name, reply in self._controller.ask(requests, 3 * _EXTRA_SECONDS):
            if isinstance(reply, host_messages.JobEnded):
                left += [f"{plain(name)} pid {pid}" for pid in reply.left]
            else:
                left.append(f"{plain(name)}: {_why(reply)[0]}")
        return left


def _parts(job: ClusterJob, ranks: RankSet | None) -> Iterable[tuple[str, FoundJob, str | None]]:
    """Yield the hosts that have some of these ranks, each with its part of the job and its ranks of the set."""
    for host, part in job.parts.items():
        if ranks is None:
            yield host, part, None
        elif here := ranks & RankSet(rank.rank for rank in part.ranks):
            yield host, part, str(here)


def _ranks(job: ClusterJob, host: str, takers: RankSet) -> list[int]:
    return [rank.rank for rank in job.parts[host].ranks if rank.rank in takers]


def _agents(host: str, reply: host_messages.AgentsAttached) -> list[FoundAgent]:
    return [replace(agent, host=host) for agent in _typed(reply.agents, FoundAgent)]


def _typed(values: Iterable[dict[str, Any]], kind: type[T]) -> list[T]:
    """Return the values of a host's answer that have the right type."""
    typed = []
    for fields in values:
        try:
            typed.append(msgspec.convert(fields, kind))
        except msgspec.ValidationError:
            continue
    return typed


def _has(job: ClusterJob, host: str, rank: int) -> bool:
    """Return whether the rank is on this host. A host may answer for its own ranks only."""
    return job.places.get(rank) == host


def _why(reply: host_messages.Reply) -> tuple[str, str]:
    if isinstance(reply, host_messages.RequestFailed):
        return reply.what, reply.help
    return "sent an answer that was not asked for", ""


def _unreached(rank: int, pid: int, what: str, help: str) -> UnreachedRank:
    return UnreachedRank(rank=rank, pid=pid, what=what, help=help)


def _silent(rank: int, what: str, help: str) -> EvalAnswer:
    return EvalAnswer(rank=rank, answer=RankAnswer(rank=rank, text=what, error=True), help=help, asked=False)
