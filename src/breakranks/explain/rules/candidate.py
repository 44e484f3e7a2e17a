"""What the rules propose as findings, and the evidence that they share."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from breakranks.explain.causes import Fact
from breakranks.explain.causes.collective_causes import OwnTimeout, RanksWait
from breakranks.explain.collectives import call_facts
from breakranks.explain.diagnosis import Finding
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules.rank_cause import RankCause
from breakranks.explain.values import CallName, HeldUp, WaitPlace, where_of
from breakranks.rankset import RankSet

_SHOWN = 6


class Candidate(NamedTuple):
    """A finding, with what must hold for it to count: ``needs`` seconds of standing still, by its victims, and by its
    culprits too where they wait for one another (``mutual``)."""

    finding: Finding
    needs: float
    culprits: RankSet
    victims: RankSet
    samples: int = 2
    known_end: bool = False
    mutual: bool = False


def with_reason(case: JobView, ranks: RankSet, reason: RankCause, waiting: list[RankGroup]) -> Candidate:
    """A rank that waits for no rank, for a cause that is known."""
    victims = case.victims_of(ranks) if waiting else RankSet()
    finding = Finding(
        kind=reason.kind,
        culprits=str(ranks),
        victims=str(victims),
        confidence=reason.confidence,
        cause=reason.cause,
        subject=case.subject(ranks),
        held_up=held_up(case, ranks, victims, at=waiting_place(waiting, ranks)) if victims else None,
        victims_at=victims_place(waiting, ranks, victims) if victims else None,
        where=where_of(reason.where),
        evidence=(*reason.evidence, *(victims_evidence(case, waiting) if waiting else ())),
        next=reason.next,
        grounds=reason.grounds,
    )
    return Candidate(finding=finding, needs=reason.needs, culprits=ranks, victims=victims, samples=reason.samples)


def direct(nodes: list[RankGroup], ranks: RankSet) -> list[RankGroup]:
    """Those that wait for these ranks themselves; all, where that is not known."""
    return [node for node in nodes if node.waits & ranks] or nodes


def first_wait(nodes: list[RankGroup], ranks: RankSet) -> RankGroup:
    """Of those that wait for these ranks themselves, the one that began first: the call that they should have come to
    first. Where no recorder says when that was, the one with the most ranks."""
    return min(
        direct(nodes, ranks),
        key=lambda node: (node.call.entry.created if node.call is not None else 0.0, -len(node.ranks)),
    )


def waiting_place(nodes: list[RankGroup], ranks: RankSet | None = None) -> WaitPlace:
    """Where most of those are that wait for these ranks."""
    node = max(nodes, key=lambda one: len(one.ranks)) if ranks is None else first_wait(nodes, ranks)
    return WaitPlace(call=node.op, where=where_of(node.where))


def victims_place(nodes: list[RankGroup], ranks: RankSet, victims: RankSet) -> WaitPlace:
    """The same for a line of its own that names all victims: not all need be there."""
    first = first_wait(nodes, ranks)
    elsewhere = first.exact and not victims <= first.ranks
    return replace(waiting_place(nodes, ranks), others_elsewhere=elsewhere)


def victims_evidence(case: JobView, nodes: list[RankGroup]) -> tuple[Fact, ...]:
    found: list[Fact] = [
        _in_call(case, alike) for alike in sorted(folded(case, nodes), key=lambda some: -len(union(some)))[:_SHOWN]
    ]
    limit = _time_limit(case, nodes)
    return (*found, OwnTimeout(seconds=limit)) if limit is not None else tuple(found)


def _in_call(case: JobView, alike: list[RankGroup]) -> RanksWait:
    """Ranks that wait in one call, or in calls of the same kind, and who has not entered it."""
    ranks = union(alike)
    first = alike[0]
    waits = RankSet()
    for node in alike:
        waits |= node.waits
    unknown = waits & case.unreached
    waits -= unknown
    recorded = first.call is not None
    return RanksWait(
        ranks=str(ranks),
        doing=replace(first.look.activity.doing(), where=where_of(first.where)),
        call=call_of(case, alike),
        absent=str(waits) if recorded else "",
        behind=first.call is not None and first.call.is_order,
        unknown=str(unknown) if recorded and not waits else "",
        stands=case.stands(ranks),
    )


def _time_limit(case: JobView, nodes: list[RankGroup]) -> float | None:
    """gloo's worker thread waits with the group's timeout: what is left of it can be read."""
    left = []
    for node in nodes:
        for sample in node.look.process.samples[-1:]:
            for thread in sample.threads:
                if thread.name.startswith("pt_gloo") and thread.call is not None and thread.call.left is not None:
                    left.append(thread.call.left)
    return min(left, default=None)


def folded(case: JobView, nodes: list[RankGroup]) -> list[list[RankGroup]]:
    """Nodes that are one but for the group that they are in: the rows and columns of a mesh."""
    found: dict[object, list[RankGroup]] = {}
    for node in nodes:
        kind = call_facts.kind(case.ledger, node.call) if node.call is not None else id(node)
        found.setdefault((kind, node.where), []).append(node)
    return list(found.values())


def call_of(case: JobView, alike: list[RankGroup]) -> CallName | None:
    """The call that these are in; of several groups without its number. None where it is not recorded."""
    node = alike[0]
    if node.call is None:
        return None
    return node.op if len(alike) == 1 else call_facts.calls(case.ledger, node.call)


def held_up(case: JobView, ranks: RankSet, victims: RankSet, *, at: WaitPlace | None = None) -> HeldUp:
    """Who waits for these ranks, and how many of them through others, where that is known."""
    nodes = [node for node in case.waiting() if node.ranks & victims]
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
