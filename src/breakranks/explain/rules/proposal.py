"""What the rules hand to the judge, and the sentences that they share."""

from __future__ import annotations

from typing import NamedTuple

from breakranks.explain import words
from breakranks.explain.case import Case, Node
from breakranks.explain.look import Look
from breakranks.explain.model import Finding
from breakranks.explain.rules.reason import Reason
from breakranks.rankset import RankSet, ranks_text


class Proposal(NamedTuple):
    """A finding, with what must hold for it to count: ``needs`` seconds of standing still."""

    finding: Finding
    needs: float
    culprits: RankSet
    victims: RankSet
    samples: int = 2
    known_end: bool = False


def with_reason(case: Case, ranks: RankSet, reason: Reason, waiting: list[Node]) -> Proposal:
    """A rank that waits for no rank, for a cause that is known."""
    victims = union(waiting) - ranks
    tail = f"; {wait_for(victims, len(ranks) > 1)} in {waiting_place(waiting)}" if victims else ""
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
        reason.kind,
        str(ranks),
        str(victims),
        reason.confidence,
        f"{case.who(ranks)} {text}{tail}",
        words.where(reason.where),
        (*reason.evidence, *(victims_evidence(case, waiting) if waiting else ())),
        reason.next,
        because=reason.because,
        victims_where=waiting_place(waiting) if victims else "",
    )
    return Proposal(finding, reason.needs, ranks, victims, reason.samples)


def waiting_place(nodes: list[Node]) -> str:
    """``all_reduce, train.py:120 in step``: where most of the waiting ranks are."""
    node = max(nodes, key=lambda one: len(one.ranks))
    frame = node.where
    if frame is None:
        return node.op
    return f"{node.op}, {words.base(frame.file)}:{frame.line} in {frame.function}"


def victims_evidence(case: Case, nodes: list[Node]) -> tuple[str, ...]:
    lines = []
    for node in sorted(nodes, key=lambda one: -len(one.ranks))[:6]:
        stood = case.stands(node.ranks)
        lines.append(
            f"{ranks_text(node.ranks)} {'is' if len(node.ranks) == 1 else 'are'} {node.look.activity.phrase}, "
            f"in {words.place(node.where)}" + (f", for {words.duration(stood)}" if stood >= 1 else "")
        )
    limit = _time_limit(case, nodes)
    if limit is not None:
        lines.append(f"the operation's own timeout ends it in {words.duration(limit)}")
    return tuple(lines)


def _time_limit(case: Case, nodes: list[Node]) -> float | None:
    """gloo's worker thread waits with the group's timeout: what is left of it can be read."""
    left = []
    for node in nodes:
        for sample in node.look.process.samples[-1:]:
            for thread in sample.threads:
                if thread.name.startswith("pt_gloo") and thread.call is not None and thread.call.left is not None:
                    left.append(thread.call.left)
    return min(left, default=None)


def doing(one: Look) -> str:
    if one.activity.word == "sleep" and one.left is not None:
        return f"sleeping for another {words.duration(one.left)}" if one.left > 1 else "sleeping a moment at a time"
    stood = f" (for {words.duration(one.stands)})" if one.stands >= 1 else ""
    if one.activity.word == "unknown":
        return "its stack could not be read"
    return one.activity.phrase + stood


def wait_for(victims: RankSet, many: bool) -> str:
    them = "them" if many else "it"
    return f"{ranks_text(victims)} wait{'s' if len(victims) == 1 else ''} for {them}"


def union(nodes: list[Node]) -> RankSet:
    found = RankSet()
    for node in nodes:
        found |= node.ranks
    return found
