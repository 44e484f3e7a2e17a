"""The jobs of many hosts: the parts of one job on several hosts, merged.

Each host finds its own part (:mod:`breakranks.jobs.local_jobs`). The parts are matched by the ids that their launcher
gave them, or, without ids, by their command and their ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
from breakranks.rankset import RankSet
from breakranks.snapshot.merge_hosts import of_hosts
from breakranks.snapshot.model import Host, Job, Missing, Problem
from breakranks.snapshot.unseen_ranks import missing_of

_ADDRESSES = ("MASTER_ADDR", "MS_SCHED_HOST")
_LOOPBACK = "loopback"
# Options that differ between the hosts of one launch.
_NODE = re.compile(r"--(?:node[-_]rank|machine[-_]rank|local[-_]addr|proxy-id)(?:=|\s+)\S+")
# The daemons by which a launcher starts ranks on other hosts. Their command lines do not identify the job.
_DAEMONS = re.compile(r"(?:^|/)(?:orted|prted|prte|hydra_pmi_proxy|hydra_bstrap_proxy|slurmstepd)\b")
_CONTROL = re.compile(r"--control-port(?:=|\s+)(\S+)")
# Between the starts of two parts of one job, if only the numbers of the ranks identify it.
_STARTED_TOGETHER_SECONDS = 600.0


class ClusterJob(NamedTuple):
    """A job over all its hosts. ``parts`` are what each host found, ``places`` the host of each rank.

    A host may have a part without ranks, where a launcher is waiting.
    """

    job: Job
    parts: dict[str, FoundJob]
    ranks: tuple[FoundRank, ...]
    missing: tuple[Missing, ...]
    places: dict[int, str]

    def host_of(self, rank: int) -> str:
        return self.places[rank]


def join(found: Mapping[str, LocalJobs], *, hosts: Sequence[Host] = ()) -> tuple[ClusterJob, ...]:
    """Return every job of these hosts, oldest first. ``hosts`` has their clocks, and unreachable hosts."""
    clocks = {host.name: host.clock for host in hosts}
    names = {address: host.name for host in hosts for address in (host.name, *host.addresses)}
    parts = [_Part(host, job, clocks.get(host, 0.0), names) for host, local in found.items() for job in local.jobs]
    worlds: dict[object, list[_World]] = {}
    for part in sorted(parts, key=lambda part: not part.claims):  # launchers without ranks join those that have some
        _place(part, worlds.setdefault(part.bucket, []))
    merged = _with_waiting([world for some in worlds.values() for world in some])
    jobs = [_job(world, hosts) for world in merged]
    jobs.sort(key=lambda job: (job.job.started, job.job.key))
    return tuple(_unique_keys(jobs))


def problems(found: Mapping[str, LocalJobs]) -> tuple[Problem, ...]:
    """The problems of all hosts, each with its hosts."""
    return of_hosts({host: local.problems for host, local in found.items()})


class _Part:
    """One host's part of a job."""

    def __init__(self, host: str, found: FoundJob, clock: float, names: Mapping[str, str]) -> None:
        self.host = host
        self.found = found
        self.started = found.job.started - clock if found.job.started else 0.0
        exited = [RankSet.parse(missing.ranks) for missing in found.missing if missing.reason == "exited"]
        self.claims = RankSet(rank.rank for rank in found.ranks)
        for ranks in exited:
            self.claims |= ranks
        address = next((found.job.ids[name] for name in _ADDRESSES if name in found.job.ids), "")
        if address in ("localhost", "::1") or address.startswith("127."):
            address = _LOOPBACK
        # One host may have the name of the master, another its address.
        self.address = names.get(address) or names.get(address.split(".")[0]) or address
        self.command = command_key(found.job.command)

    @property
    def bucket(self) -> object:
        """The key that all parts of one job share."""
        job = self.found.job
        named = tuple(sorted((name, value) for name, value in job.ids.items() if name not in _ADDRESSES))
        return (named or job.launcher, job.world_size, bool(job.ids))


class _World:
    """The parts of one job, while it is assembled."""

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
    """What the command lines of one launch share on all hosts; empty if they do not identify the launch.

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
    """Merge launchers without ranks into the job with the same command on other hosts."""
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
    missing = [(part.host, part.found.missing) for part in parts]
    seen = RankSet(rank.rank for rank in ranks)
    return ClusterJob(
        job=job,
        parts={part.host: part.found for part in parts},
        ranks=tuple(ranks),
        missing=missing_of(missing, seen, job.world_size, hosts),
        places={rank.rank: part.host for part in parts for rank in part.found.ranks},
    )


def _unique_keys(jobs: list[ClusterJob]) -> list[ClusterJob]:
    """Add the host to keys that are not unique: two hosts may have jobs with the same port or the same pid."""
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.job.key] = counts.get(job.job.key, 0) + 1
    return [
        job._replace(job=replace(job.job, key=f"{job.job.key}-{next(iter(job.parts))}"))
        if counts[job.job.key] > 1
        else job
        for job in jobs
    ]
