"""collective-mismatch, collective-order-deadlock, p2p-deadlock, collective-stalled: by what the recorders say."""

from __future__ import annotations

from breakranks.explain.actions import RunBreakranks
from breakranks.explain.causes import Cause
from breakranks.explain.causes.collective_causes import (
    CallSide,
    FromArguments,
    Gather,
    GatherAdvice,
    LoneGather,
    RanksAtLine,
    RootsDiffer,
    RootSide,
)
from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.root_causes import MISMATCH, MISSING, P2P, STALLED, RootCause, causes
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.frame_meanings import DTENSOR, FSDP
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules.candidate import Candidate, victims_evidence, waiting_place
from breakranks.explain.rules.rank_cause import MOMENT_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS
from breakranks.explain.values import CallName, Subject, WaitPlace, where_of
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Frame


def proposals(case: JobView, waiting: list[RankGroup]) -> list[Candidate]:
    """What the recorders explain by themselves. Who is merely missing is told by its stack: see ``missing``."""
    if not case.ledger or not any(node.call is not None for node in waiting):
        return []
    standing = RankSet(case.calls)
    found = []
    for cause in causes(case.ledger):
        core = cause.mismatch.ranks if cause.mismatch is not None else cause.culprits
        # A rank that has a call under way and does something else meanwhile does not stand in it.
        if cause.kind == MISSING or not core & case.seen <= standing:
            continue
        found.append(_stalled(case, cause) if cause.kind == STALLED else _proposal(case, cause))
    quiet = case.asleep() and not case.unseen
    return [one._replace(needs=MOMENT_SECONDS) if one.needs == PATIENCE_SECONDS and quiet else one for one in found]


def _proposal(case: JobView, cause: RootCause) -> Candidate:
    lone = _lone_gather(case, cause)
    culprits = lone or cause.culprits
    victims = ((cause.victims | cause.culprits) - culprits) & case.seen
    # That they do not agree, or wait in a ring, is certain. Not so which side is wrong, whether an order or a call that
    # was left out is the reason, or whether streams of their own let calls overtake each other.
    unsure = cause.kind != P2P or any(wait.is_order for _, wait in cause.ring)
    finding = Finding(
        kind=cause.kind,
        culprits=str(culprits),
        victims=str(victims),
        confidence=LIKELY if unsure else CERTAIN,
        cause=_gather_cause(case, cause, lone) if lone is not None else call_facts.cause_of(case.ledger, cause),
        subject=Subject(ranks=str(culprits)),
        held_up=call_facts.held_up(cause) if lone is None else None,
        victims_at=call_facts.victims_at(case.ledger, cause) or waiting_place(case.waiting()),
        where=where_of(case.look_of(culprits & case.seen).where),
        evidence=(
            *call_facts.trait(case.ledger, culprits),
            *_places(case, cause),
            *call_facts.proof(case.ledger, cause),
            *((GatherAdvice(fsdp=gathers(case, lone) == FSDP),) if lone is not None else ()),
        ),
        next=(RunBreakranks(command="collectives", args=("--rank", str(culprits), "--history", "8")),),
        grounds=("recorders-differ" if unsure else "recorders-show",),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=culprits, victims=victims)


def _sides(cause: RootCause) -> list[tuple[RankSet, int, int, int]]:
    """Each side of a cause: its ranks, and the group, number and operation of the call that they stand in."""
    if cause.mismatch is not None:
        return [(ranks, cause.mismatch.group, cause.mismatch.number, row) for ranks, row in cause.mismatch.sides]
    return [(ranks, wait.group, wait.entry.number, wait.entry.operation) for ranks, wait in cause.ring]


def _places(case: JobView, cause: RootCause) -> tuple[RanksAtLine, ...]:
    """Where in their code the ranks stand: the recorder of a live rank is read without stacks."""
    return _places_of(case, [ranks for ranks, *_ in _sides(cause)])


def _places_of(case: JobView, sides: list[RankSet]) -> tuple[RanksAtLine, ...]:
    found: dict[Frame | None, RankSet] = {}
    for ranks in sides[:8]:
        for rank in ranks & case.seen:
            frame = case.looks[rank].where
            found[frame] = found.get(frame, RankSet()) | RankSet([rank])
    return tuple(
        RanksAtLine(ranks=str(ranks), where=where)
        for frame, ranks in list(found.items())[:8]
        if (where := where_of(frame)) is not None
    )


def _lone_gather(case: JobView, cause: RootCause) -> RankSet | None:
    """The side that gathers what is sharded over all, when the others do not and are at least as many."""
    sides = _sides(cause)
    gathering = [ranks for ranks, *_ in sides if gathers(case, ranks)]
    everyone = sum(len(ranks) for ranks, *_ in sides)
    return gathering[0] if len(gathering) == 1 and 2 * len(gathering[0]) <= everyone else None


def gathers(case: JobView, ranks: RankSet) -> str:
    """What all of these are gathering: ``FSDP`` or ``DTENSOR``; empty when they do something else."""
    contexts = {case.looks[rank].activity.context for rank in ranks & case.seen}
    return contexts.pop() if len(contexts) == 1 and contexts <= {FSDP, DTENSOR} else ""


def _gather_cause(case: JobView, cause: RootCause, ranks: RankSet) -> Cause:
    sides = _sides(cause)
    _, group, number, _ = next(side for side in sides if side[0] == ranks)
    others = tuple(
        CallSide(ranks=str(side), call=CallName(operation=case.ledger.name(row)))
        for side, _, _, row in sides
        if side != ranks
    )
    name = call_facts.group_name(case.ledger, group)
    return LoneGather(gather=gather_of(case, ranks), number=number, group=name, others=others)


def gather_of(case: JobView, ranks: RankSet) -> Gather:
    """What these ranks gather alone, and where."""
    return Gather(
        subject=case.subject(ranks),
        fsdp=gathers(case, ranks) == FSDP,
        module=_module(case, ranks.first),
        where=where_of(case.look_of(ranks).where),
    )


def _module(case: JobView, rank: int) -> str:
    recorder = case.ledger.recorders.get(rank)
    return recorder.notes.get("fsdp", "") if recorder is not None else ""


def _roots(case: JobView, cause: RootCause) -> dict[str, RankSet]:
    """Which rank each takes for the root of a broadcast, reduce, gather or scatter: recorders do not say it."""
    found: dict[str, RankSet] = {}
    for rank in cause.culprits & case.seen:
        one = case.looks[rank]
        hints = one.thread.hints if one.thread is not None else {}
        roots = [hints.get(f"{one.activity.op}.{end}", "") for end in ("src", "dst", "group_src", "group_dst")]
        root = next((text for text in roots if text.isdigit()), "")
        found[root] = found.get(root, RankSet()) | RankSet([rank])
    return found


def _root_differs(case: JobView, cause: RootCause, roots: dict[str, RankSet]) -> Candidate:
    assert cause.wait is not None
    sides = sorted(roots.items(), key=lambda side: len(side[1]))
    culprits = cause.culprits if len(sides[-1][1]) == len(sides[-2][1]) else cause.culprits - sides[-1][1]
    victims = (cause.culprits | cause.victims) - culprits
    finding = Finding(
        kind=MISMATCH,
        culprits=str(culprits),
        victims=str(victims),
        confidence=LIKELY,
        cause=RootsDiffer(
            call=call_facts.call(case.ledger, cause.wait),
            sides=tuple(RootSide(root=root, ranks=str(ranks)) for root, ranks in reversed(sides)),
        ),
        subject=Subject(ranks=str(culprits)),
        victims_at=WaitPlace(call=call_facts.call(case.ledger, cause.wait)),
        where=where_of(case.look_of(culprits).where),
        evidence=(*_places_of(case, [ranks for _, ranks in sides]), FromArguments()),
        next=(RunBreakranks(command="stacks", args=("--rank", str(culprits))),),
        grounds=("differ-certain",),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=culprits, victims=victims)


def _stalled(case: JobView, cause: RootCause) -> Candidate:
    """All are in it, with the same sizes, and it does not end."""
    assert cause.wait is not None
    roots = _roots(case, cause)
    if len(roots) > 1 and "" not in roots:
        return _root_differs(case, cause, roots)
    nodes = [node for node in case.waiting() if node.ranks & cause.culprits]
    victims = cause.victims & case.seen
    finding = Finding(
        kind=STALLED,
        culprits=str(cause.culprits),
        victims=str(victims),
        confidence=GUESS,
        cause=call_facts.cause_of(case.ledger, cause),
        subject=Subject(ranks=str(cause.culprits)),
        victims_at=waiting_place(nodes) if nodes else None,
        where=where_of(case.look_of(cause.culprits).where),
        evidence=victims_evidence(case, nodes),
        next=(RunBreakranks(command="stacks", args=("--native", "--threads")),),
        grounds=("recorders-agree",),
    )
    return Candidate(finding=finding, needs=SLOW_SECONDS, culprits=cause.culprits, victims=victims)
