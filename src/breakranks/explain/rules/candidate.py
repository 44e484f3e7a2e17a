"""The findings that rules propose, and the evidence that they share."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from breakranks.explain.causes import Fact
from breakranks.explain.causes.collective_causes import OwnTimeout, RanksWait
from breakranks.explain.collectives import call_facts
from breakranks.explain.diagnosis import Finding
from breakranks.explain.finding_parts import CallName, HeldUp, WaitPlace, where_of
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules.rank_cause import RankCause
from breakranks.rankset import RankSet

_SHOWN = 6


class FindingCandidate(NamedTuple):
    """A finding, and the condition under which it counts: for ``needs`` seconds its victims have not moved, nor its
    culprits if they wait for each other (``mutual``)."""

    finding: Finding
    needs: float
    culprits: RankSet
    victims: RankSet
    samples: int = 2
    known_end: bool = False
    mutual: bool = False


def with_reason(job: JobView, ranks: RankSet, reason: RankCause, waiting: list[RankGroup]) -> FindingCandidate:
    """Return the candidate for ranks that wait for no rank, with a known cause."""
    victims = job.victims_of(ranks) if waiting else RankSet()
    finding = Finding(
        kind=reason.kind,
        culprits=str(ranks),
        victims=str(victims),
        confidence=reason.confidence,
        cause=reason.cause,
        subject=job.subject(ranks),
        held_up=held_up(job, ranks, victims, at=waiting_place(waiting, ranks)) if victims else None,
        victims_at=victims_place(waiting, ranks, victims) if victims else None,
        where=where_of(reason.where),
        evidence=(*reason.evidence, *(victims_evidence(job, waiting) if waiting else ())),
        next=reason.next,
        grounds=reason.grounds,
    )
    return FindingCandidate(
        finding=finding, needs=reason.needs, culprits=ranks, victims=victims, samples=reason.samples
    )


def direct(nodes: list[RankGroup], ranks: RankSet) -> list[RankGroup]:
    """Return the groups that wait for these ranks directly, or all groups where that is not known."""
    return [node for node in nodes if node.waits & ranks] or nodes


def first_wait(nodes: list[RankGroup], ranks: RankSet) -> RankGroup:
    """Return the group that began first to wait for these ranks directly: its call is the one that they should have
    entered first. Where no recorder contains that time, return the group with the most ranks."""
    return min(
        direct(nodes, ranks),
        key=lambda node: (node.call.entry.created if node.call is not None else 0.0, -len(node.ranks)),
    )


def waiting_place(nodes: list[RankGroup], ranks: RankSet | None = None) -> WaitPlace:
    """Return where most of the ranks are that wait for these."""
    node = max(nodes, key=lambda node: len(node.ranks)) if ranks is None else first_wait(nodes, ranks)
    return WaitPlace(call=node.op, where=where_of(node.where))


def victims_place(nodes: list[RankGroup], ranks: RankSet, victims: RankSet) -> WaitPlace:
    """Return that place for a line that names all victims: some of them may be elsewhere."""
    first = first_wait(nodes, ranks)
    elsewhere = first.exact and not victims <= first.ranks
    return replace(waiting_place(nodes, ranks), others_elsewhere=elsewhere)


def victims_evidence(job: JobView, nodes: list[RankGroup]) -> tuple[Fact, ...]:
    found: list[Fact] = [
        _in_call(job, alike) for alike in sorted(folded(job, nodes), key=lambda some: -len(union(some)))[:_SHOWN]
    ]
    limit = _time_limit(nodes)
    return (*found, OwnTimeout(seconds=limit)) if limit is not None else tuple(found)


def _in_call(job: JobView, alike: list[RankGroup]) -> RanksWait:
    """Return the fact about ranks that wait in one call, or in calls of the same kind, and the ranks that have not
    entered it."""
    ranks = union(alike)
    first = alike[0]
    waits = RankSet()
    for node in alike:
        waits |= node.waits
    unknown = waits & job.unreached
    waits -= unknown
    recorded = first.call is not None
    return RanksWait(
        ranks=str(ranks),
        doing=replace(first.view.activity.doing(), where=where_of(first.where)),
        call=call_of(job, alike),
        absent=str(waits) if recorded else "",
        behind=first.call is not None and first.call.is_order,
        unknown=str(unknown) if recorded and not waits else "",
        stands=job.stands(ranks),
    )


def _time_limit(nodes: list[RankGroup]) -> float | None:
    """Return the seconds until the timeout of the group, from the wait of gloo's worker thread."""
    left = []
    for node in nodes:
        for sample in node.view.process.samples[-1:]:
            for thread in sample.threads:
                if thread.name.startswith("pt_gloo") and thread.call is not None and thread.call.left is not None:
                    left.append(thread.call.left)
    return min(left, default=None)


def folded(job: JobView, nodes: list[RankGroup]) -> list[list[RankGroup]]:
    """Return the groups folded that differ only in their process group: the rows and columns of a mesh."""
    found: dict[object, list[RankGroup]] = {}
    for node in nodes:
        kind = call_facts.kind(job.progress, node.call) if node.call is not None else id(node)
        found.setdefault((kind, node.where), []).append(node)
    return list(found.values())


def call_of(job: JobView, alike: list[RankGroup]) -> CallName | None:
    """Return the call that these are in, without its number for several groups; None if it is not recorded."""
    node = alike[0]
    if node.call is None:
        return None
    return node.op if len(alike) == 1 else call_facts.calls(job.progress, node.call)


def held_up(job: JobView, ranks: RankSet, victims: RankSet, *, at: WaitPlace | None = None) -> HeldUp:
    """Return the ranks that wait for these, and how many of them wait through others, where that is known."""
    nodes = [node for node in job.waiting() if node.ranks & victims]
    if not nodes or not all(node.exact for node in nodes):
        return HeldUp(ranks=str(victims), at=at)
    through = [node for node in nodes if not node.waits & ranks]
    groups = {node.call.group if node.call is not None else None for node in through}
    count = None if None in groups else len(groups)
    return HeldUp(ranks=str(victims), through=len(union(through)), groups=count, at=at)


def union(nodes: list[RankGroup]) -> RankSet:
    found = RankSet()
    for node in nodes:
        found |= node.ranks
    return found
