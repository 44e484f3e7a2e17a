"""The jobs of many hosts: the same job on several is one.

Each host finds its own (:mod:`breakranks.jobs.local_jobs`); here they are put together by the names that their launcher
gave them, or, where it gave none, by what they run and the ranks that they have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
from breakranks.rankset import RankSet
from breakranks.snapshot.merge_hosts import of_hosts
from breakranks.snapshot.model import Host, Job, Missing, Problem
from breakranks.snapshot.unseen_ranks import missing_of

_ADDRESSES = ("MASTER_ADDR", "MS_SCHED_HOST")
_LOOPBACK = "loopback"
# Options that tell the hosts of one launch apart.
_NODE = re.compile(r"--(?:node[-_]rank|machine[-_]rank|local[-_]addr|proxy-id)(?:=|\s+)\S+")
# The daemons by which a launcher starts ranks on other hosts: their command lines are nobody's.
_DAEMONS = re.compile(r"(?:^|/)(?:orted|prted|prte|hydra_pmi_proxy|hydra_bstrap_proxy|slurmstepd)\b")
_CONTROL = re.compile(r"--control-port(?:=|\s+)(\S+)")
# Seconds: where nothing but the ranks' numbers says that two parts are one job.
_STARTED_TOGETHER_SECONDS = 600.0


class ClusterJob(NamedTuple):
    """A job over all its hosts. ``parts`` is what each host found of it, ``places`` the host of each rank.

    Of a job with ids a host may have a part without ranks: its launcher waits there.
    """

    job: Job
    parts: dict[str, FoundJob]
    ranks: tuple[FoundRank, ...]
    missing: tuple[Missing, ...]
    places: dict[int, str]

    def host_of(self, rank: int) -> str:
        return self.places[rank]


def join(found: Mapping[str, LocalJobs], *, hosts: Sequence[Host] = ()) -> tuple[ClusterJob, ...]:
    """Every job of these hosts, oldest first. ``hosts`` adds the clocks, and those that could not be seen."""
    clocks = {host.name: host.clock for host in hosts}
    names = {address: host.name for host in hosts for address in (host.name, *host.addresses)}
    parts = [_Part(host, job, clocks.get(host, 0.0), names) for host, one in found.items() for job in one.jobs]
    worlds: dict[object, list[_World]] = {}
    for part in sorted(parts, key=lambda part: not part.claims):  # launchers without ranks join those that have some
        _place(part, worlds.setdefault(part.bucket, []))
    every = _with_waiting([world for some in worlds.values() for world in some])
    jobs = [_job(world, hosts) for world in every]
    jobs.sort(key=lambda one: (one.job.started, one.job.key))
    return tuple(_unique_keys(jobs))


def problems(found: Mapping[str, LocalJobs]) -> tuple[Problem, ...]:
    """What could not be seen, and on which hosts."""
    return of_hosts({host: one.problems for host, one in found.items()})


class _Part:
    """One host's part of a job."""

    def __init__(self, host: str, found: FoundJob, clock: float, names: Mapping[str, str]) -> None:
        self.host = host
        self.found = found
        self.started = found.job.started - clock if found.job.started else 0.0
        exited = [RankSet.parse(one.ranks) for one in found.missing if one.reason == "exited"]
        self.claims = RankSet(rank.rank for rank in found.ranks)
        for ranks in exited:
            self.claims |= ranks
        address = next((found.job.ids[name] for name in _ADDRESSES if name in found.job.ids), "")
        if address in ("localhost", "::1") or address.startswith("127."):
            address = _LOOPBACK
        # One may have been told a name, and another the number.
        self.address = names.get(address) or names.get(address.split(".")[0]) or address
        self.command = command_key(found.job.command)

    @property
    def bucket(self) -> object:
        """What all parts of one job have in common."""
        job = self.found.job
        named = tuple(sorted((name, value) for name, value in job.ids.items() if name not in _ADDRESSES))
        return (named or job.launcher, job.world_size, bool(job.ids))


class _World:
    """Parts that are one job, while it is put together."""

    def __init__(self, part: _Part) -> None:
        self.parts = {part.host: part}
        self.claims = part.claims
        self.address = part.address
        self.command = part.command
        self.started = part.started

    def takes(self, part: _Part) -> bool:
        if part.host in self.parts or self.claims & part.claims:
            return False
        if part.found.job.ids:
            return part.address == self.address or _LOOPBACK in (part.address, self.address)
        if part.command and self.command:
            return part.command == self.command
        return abs(part.started - self.started) < _STARTED_TOGETHER_SECONDS

    def add(self, part: _Part) -> None:
        self.parts[part.host] = part
        self.claims |= part.claims
        self.command = self.command or part.command
        if self.address in ("", _LOOPBACK):
            self.address = part.address


def command_key(command: Iterable[str]) -> str:
    """What the command lines of one launch have in common on all hosts; ``""``: nothing that tells.

    >>> command_key(("torchrun", "--node-rank=1", "--nnodes", "2", "train.py"))
    'torchrun --nnodes 2 train.py'
    """
    text = " ".join(command)
    control = _CONTROL.search(text)
    if control is not None:
        return control[1]
    return "" if _DAEMONS.search(text.split(" ")[0]) else " ".join(_NODE.sub("", text).split())


def _place(part: _Part, worlds: list[_World]) -> None:
    for world in worlds:
        if world.takes(part):
            world.add(part)
            return
    worlds.append(_World(part))


def _with_waiting(worlds: list[_World]) -> list[_World]:
    """Launchers that have no ranks yet, or no more, put with the job of the same command on other hosts."""
    kept = [world for world in worlds if world.claims]
    homes: dict[object, list[_World]] = {}
    for world in kept:
        for part in world.parts.values():
            homes.setdefault((part.found.job.launcher, part.command), []).append(world)
            break
    for world in worlds:
        if world.claims:
            continue
        first = next(iter(world.parts.values()))
        same = homes.get((first.found.job.launcher, first.command), [])
        if len(same) == 1 and first.command and not same[0].parts.keys() & world.parts.keys():
            for part in world.parts.values():
                same[0].add(part)
        else:
            kept.append(world)
    return kept


def _job(world: _World, hosts: Sequence[Host]) -> ClusterJob:
    parts = sorted(world.parts.values(), key=lambda part: part.claims.first if part.claims else 1 << 62)
    first = parts[0].found.job
    started = [part.started for part in parts if part.started]
    job = replace(
        first,
        world_size=max(part.found.job.world_size for part in parts),
        started=min(started, default=0.0),
    )
    ranks = sorted(rank for part in parts for rank in part.found.ranks)
    told = [(part.host, part.found.missing) for part in parts]
    seen = RankSet(rank.rank for rank in ranks)
    return ClusterJob(
        job=job,
        parts={part.host: part.found for part in parts},
        ranks=tuple(ranks),
        missing=missing_of(told, seen, job.world_size, hosts),
        places={rank.rank: part.host for part in parts for rank in part.found.ranks},
    )


def _unique_keys(jobs: list[ClusterJob]) -> list[ClusterJob]:
    """Two hosts may have a job of the same name each (the same port, the same pid): add the host."""
    counts: dict[str, int] = {}
    for one in jobs:
        counts[one.job.key] = counts.get(one.job.key, 0) + 1
    return [
        one._replace(job=replace(one.job, key=f"{one.job.key}-{next(iter(one.parts))}"))
        if counts[one.job.key] > 1
        else one
        for one in jobs
    ]
