"""The ranks of other hosts: agents there, links to them, and questions to ranks."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from breakranks.cli.reaching import Reaching
from breakranks.debug.answers import Answer
from breakranks.debug.asking import Question, Told
from breakranks.debug.attach import DEADLINE, Attached, Unreached
from breakranks.debug.link import Found
from breakranks.jobs.across import ClusterJob
from breakranks.jobs.find import FoundJob
from breakranks.rankset import RankSet
from breakranks.reach import messages
from breakranks.reach.cluster import names_of, plain

T = TypeVar("T")
_MORE = 10.0  # seconds that a host has beyond those that its ranks have


class Beyond:
    """What ``debug.link.Here`` is to this host, for those of a target."""

    rescan = 2.0

    def __init__(self, reaching: Reaching) -> None:
        self._reaching = reaching
        self._fleet = reaching.fleet
        self._names = names_of(self._fleet)

    def find(self) -> list[Found]:
        asked = dict.fromkeys(self._fleet.up, messages.Agents(0))
        found: list[Found] = []
        for name, reply in self._fleet.ask(asked, self._fleet.deadline):
            if isinstance(reply, messages.Attached):
                found += _agents(plain(name), reply)
        return self._named(found)

    def _named(self, found: list[Found]) -> list[Found]:
        """One job has one name. Where a launcher gave it none, each host has made one of its own."""
        keys = {
            (host, rank.pid): job.job.key
            for job in self._reaching.jobs()
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

    def connect(self, found: Found) -> socket.socket:
        return self._fleet.connect(self._names[found.host], found.path)

    def attach(self, job: ClusterJob, ranks: RankSet | None) -> Attached:
        requests = {
            self._names[host]: messages.Attach(0, part.job.key, here, DEADLINE)
            for host, part, here in _parts(job, ranks)
        }
        agents: list[Found] = []
        unreached: list[Unreached] = []
        for name, reply in self._fleet.ask(requests, 2 * DEADLINE + _MORE):
            if isinstance(reply, messages.Attached):
                agents += [one for one in _agents(plain(name), reply) if _has(job, plain(name), one.rank)]
                unreached += [one for one in _typed(reply.unreached, Unreached) if _has(job, plain(name), one.rank)]
            else:
                what, help = _why(reply)
                host = plain(name)
                unreached += [_unreached(one.rank, one.pid, what, help) for one in job.parts[host].ranks]
        entered = {one.rank for one in agents} | {one.rank for one in unreached}
        for host, part, here in _parts(job, ranks):
            lost = self._fleet.lost.get(self._names[host])
            if lost is not None:
                wanted = RankSet.parse(here) if here is not None else RankSet(one.rank for one in part.ranks)
                some = [one for one in part.ranks if one.rank in wanted and one.rank not in entered]
                unreached += [_unreached(one.rank, one.pid, f"{host}: {lost.what}", lost.remedy) for one in some]
        return Attached(agents=tuple(agents), unreached=tuple(unreached))

    def ask(self, job: ClusterJob, ranks: RankSet | None, question: Question, seconds: float) -> list[Told]:
        takers = RankSet(one.rank for one in job.ranks) if ranks is None else ranks
        asked = msgspec.structs.asdict(question)
        requests = {
            self._names[host]: messages.Eval(0, part.job.key, here, str(takers), asked, seconds)
            for host, part, here in _parts(job, ranks)
        }
        told: dict[int, Told] = {}
        for name, reply in self._fleet.ask(requests, seconds + _MORE):
            if isinstance(reply, messages.Told):
                told |= {one.rank: one for one in _typed(reply.told, Told) if _has(job, plain(name), one.rank)}
            else:
                what, help = _why(reply)
                told |= {rank: _silent(rank, what, help) for rank in _ranks(job, plain(name), takers)}
        for host in job.parts:
            lost = self._fleet.lost.get(self._names[host])
            for rank in _ranks(job, host, takers):
                if rank not in told and lost is not None:
                    told[rank] = _silent(rank, f"{host}: {lost.what}", lost.remedy)
        return [told[rank] for rank in sorted(told)]

    def key_of(self, agents: Iterable[Found]) -> str:
        """The key of the job that these agents are of."""
        pids = {(one.host, one.pid) for one in agents}
        for job in self._reaching.jobs():
            if any((host, rank.pid) in pids for host, part in job.parts.items() for rank in part.ranks):
                return job.job.key
        return ""

    def end(self, agents: Iterable[Found]) -> list[str]:
        """End the job that these agents are of; who is still there, as ``host pid``."""
        by_host: dict[str, list[int]] = {}
        for one in agents:
            by_host.setdefault(one.host, []).append(one.pid)
        asked = {self._names[host]: messages.End(0, tuple(pids)) for host, pids in by_host.items()}
        left: list[str] = []
        for name, reply in self._fleet.ask(asked, 3 * _MORE):
            if isinstance(reply, messages.Ended):
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


def _agents(host: str, reply: messages.Attached) -> list[Found]:
    return [msgspec.structs.replace(one, host=host) for one in _typed(reply.agents, Found)]


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


def _why(reply: messages.Reply) -> tuple[str, str]:
    if isinstance(reply, messages.Failed):
        return reply.what, reply.help
    return "answered what was not asked", ""


def _unreached(rank: int, pid: int, what: str, help: str) -> Unreached:
    return Unreached(rank=rank, pid=pid, what=what, help=help)


def _silent(rank: int, what: str, help: str) -> Told:
    return Told(rank=rank, answer=Answer(rank=rank, text=what, error=True), help=help, asked=False)
