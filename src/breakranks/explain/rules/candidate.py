"""What the rules hand to the judge, and the sentences that they share."""

from __future__ import annotations

from typing import NamedTuple

from breakranks.explain import phrases
from breakranks.explain.collectives import call_phrases
from breakranks.explain.diagnosis import Finding
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import RankCause
from breakranks.rankset import RankSet, ranks_text


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
    tail = f"; {wait_for(case, ranks, victims)} in {waiting_place(waiting, ranks)}" if victims else ""
    text = reason.text
    if len(ranks) > 1:
        for one, many in (
            ("is ", "are "),
            ("waits ", "wait "),
            ("has ", "have "),
            ("holds ", "hold "),
            ("runs ", "run "),
        ):
            if text.startswith(one):
                text = many + text[len(one) :]
    finding = Finding(
        kind=reason.kind,
        culprits=str(ranks),
        victims=str(victims),
        confidence=reason.confidence,
        summary=f"{case.who(ranks)} {text}{tail}",
        where=phrases.where(reason.where),
        evidence=(*reason.evidence, *(victims_evidence(case, waiting) if waiting else ())),
        next=reason.next,
        because=reason.because,
        victims_where=victims_place(waiting, ranks, victims) if victims else "",
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


def waiting_place(nodes: list[RankGroup], ranks: RankSet | None = None) -> str:
    """``all_reduce #239 of mesh_tp, train.py:120 in step``: where most of those are that wait for these ranks."""
    node = max(nodes, key=lambda one: len(one.ranks)) if ranks is None else first_wait(nodes, ranks)
    frame = node.where
    return node.op if frame is None else f"{node.op}, {phrases.base(frame.file)}:{frame.line} in {frame.function}"


def victims_place(nodes: list[RankGroup], ranks: RankSet, victims: RankSet) -> str:
    """The same for a line of its own that names all victims: not all need be there."""
    first = first_wait(nodes, ranks)
    rest = "" if not first.exact or victims <= first.ranks else "; the rest in other calls"
    return waiting_place(nodes, ranks) + rest


def victims_evidence(case: JobView, nodes: list[RankGroup]) -> tuple[str, ...]:
    lines = []
    for alike in sorted(folded(case, nodes), key=lambda some: -len(union(some)))[:6]:
        ranks = union(alike)
        stood = case.stands(ranks)
        lines.append(
            f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} {what(case, alike)}, "
            f"in {phrases.place(alike[0].where)}{_lacking(case, alike)}"
            + (f", for {phrases.duration(stood)}" if stood >= 1 else "")
        )
    limit = _time_limit(case, nodes)
    if limit is not None:
        lines.append(f"the operation's own timeout ends it in {phrases.duration(limit)}")
    return tuple(lines)


def _time_limit(case: JobView, nodes: list[RankGroup]) -> float | None:
    """gloo's worker thread waits with the group's timeout: what is left of it can be read."""
    left = []
    for node in nodes:
        for sample in node.look.process.samples[-1:]:
            for thread in sample.threads:
                if thread.name.startswith("pt_gloo") and thread.call is not None and thread.call.left is not None:
                    left.append(thread.call.left)
    return min(left, default=None)


def doing(one: ProcessView) -> str:
    if one.activity.word == "sleep" and one.left is not None:
        return f"sleeping for another {phrases.duration(one.left)}" if one.left > 1 else "sleeping a moment at a time"
    stood = f" (for {phrases.duration(one.stands)})" if one.stands >= 1 else ""
    if one.activity.word == "unknown":
        return "its stack could not be read"
    return one.activity.phrase + stood


def folded(case: JobView, nodes: list[RankGroup]) -> list[list[RankGroup]]:
    """Nodes that are one but for the group that they are in: the rows and columns of a mesh."""
    found: dict[object, list[RankGroup]] = {}
    for node in nodes:
        kind = call_phrases.kind(case.ledger, node.call) if node.call is not None else id(node)
        found.setdefault((kind, node.where), []).append(node)
    return list(found.values())


def what(case: JobView, alike: list[RankGroup]) -> str:
    """``in all_reduce #9 of mesh_tp (4-7)``, or of several groups: ``in all_reduce of mesh_tp``"""
    node = alike[0]
    if node.call is None:
        return node.look.activity.phrase
    return f"in {node.op if len(alike) == 1 else call_phrases.calls(case.ledger, node.call)}"


def _lacking(case: JobView, alike: list[RankGroup]) -> str:
    waits = RankSet()
    for node in alike:
        waits |= node.waits
    unknown = waits & case.unreached
    waits -= unknown
    if alike[0].call is not None and unknown and not waits:
        return f"; whether {ranks_text(unknown)} has entered it is not known"
    if alike[0].call is None or not waits:
        return ""
    verb = "is behind with" if alike[0].call.is_order else "has not entered"
    if len(waits) > 1:
        verb = verb.replace("is", "are").replace("has", "have")
    return f", which {ranks_text(waits)} {verb}"


def wait_for(case: JobView, ranks: RankSet, victims: RankSet) -> str:
    """``ranks 0-3 wait for it, 2 of them through 1 other group``"""
    them = "them" if len(ranks) > 1 else "it"
    text = f"{ranks_text(victims)} wait{'s' if len(victims) == 1 else ''} for {them}"
    nodes = [node for node in case.waiting() if node.ranks & victims]
    if not nodes or not all(node.exact for node in nodes):
        return text
    through = [node for node in nodes if not node.waits & ranks]
    groups = {node.call.group if node.call is not None else -1 for node in through}
    if through:
        others = f"{len(groups)} other group{'s' if len(groups) > 1 else ''}" if -1 not in groups else "others"
        text += f", {len(union(through))} of them through {others}"
    return text


def union(nodes: list[RankGroup]) -> RankSet:
    found = RankSet()
    for node in nodes:
        found |= node.ranks
    return found
