"""collective-mismatch, collective-order-deadlock, p2p-deadlock, collective-stalled: by what the recorders say."""

from __future__ import annotations

from breakranks.explain import phrases
from breakranks.explain.collectives import call_phrases
from breakranks.explain.collectives.root_causes import MISMATCH, MISSING, P2P, STALLED, RootCause, causes
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.frame_table import DTENSOR, FSDP
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules.candidate import Candidate, victims_evidence, waiting_place
from breakranks.explain.rules.rank_cause import MOMENT_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS
from breakranks.rankset import RankSet, ranks_text
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
    where = case.look_of(culprits & case.seen).where
    trait = call_phrases.trait(case.ledger, culprits)
    finding = Finding(
        kind=cause.kind,
        culprits=str(culprits),
        victims=str(victims),
        confidence=LIKELY if unsure else CERTAIN,
        summary=_gather_text(case, cause, lone) if lone is not None else call_phrases.sentence(case.ledger, cause),
        where=phrases.where(where),
        evidence=(
            *((trait,) if trait else ()),
            *_places(case, cause),
            *call_phrases.proof(case.ledger, cause),
            *((gather_advice(case, lone),) if lone is not None else ()),
        ),
        next=(f"breakranks collectives --rank {culprits} --history 8",),
        because="their flight recorders show different calls; which side is wrong the code decides"
        if unsure
        else "their flight recorders show who has not entered what",
        victims_where=call_phrases.victims_in(case.ledger, cause) or waiting_place(case.waiting()),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=culprits, victims=victims)


def _sides(cause: RootCause) -> list[tuple[RankSet, int, int, int]]:
    """Each side of a cause: its ranks, and the group, number and operation of the call that they stand in."""
    if cause.mismatch is not None:
        return [(ranks, cause.mismatch.group, cause.mismatch.number, row) for ranks, row in cause.mismatch.sides]
    return [(ranks, wait.group, wait.entry.number, wait.entry.operation) for ranks, wait in cause.ring]


def _places(case: JobView, cause: RootCause) -> tuple[str, ...]:
    """Where in their code the ranks stand: the recorder of a live rank is read without stacks."""
    return _places_of(case, [ranks for ranks, *_ in _sides(cause)])


def _places_of(case: JobView, sides: list[RankSet]) -> tuple[str, ...]:
    found: dict[Frame | None, RankSet] = {}
    for ranks in sides[:8]:
        for rank in ranks & case.seen:
            frame = case.looks[rank].where
            found[frame] = found.get(frame, RankSet()) | RankSet([rank])
    return tuple(
        f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} at {phrases.place(frame)}"
        for frame, ranks in list(found.items())[:8]
        if frame is not None
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


def _gather_text(case: JobView, cause: RootCause, ranks: RankSet) -> str:
    sides = _sides(cause)
    _, group, number, _ = next(side for side in sides if side[0] == ranks)
    others = [
        f"{ranks_text(side)} {'is' if len(side) == 1 else 'are'} in {case.ledger.name(row)}"
        for side, _, _, row in sides
        if side != ranks
    ]
    call = f"#{number} of {call_phrases.group_name(case.ledger, group)}"
    return f"{alone(case, ranks)} ({call}) needs every rank, and {phrases.listed(others)}"


def alone(case: JobView, ranks: RankSet) -> str:
    """``rank 0 (pid 4242) alone runs an FSDP model, in validate, train.py:50: the all_gather of its parameters``"""
    s = "s" if len(ranks) == 1 else ""
    module = _module(case, ranks.first)
    if gathers(case, ranks) == FSDP:
        what = f"alone run{s} an FSDP model"
        gather = f"the all_gather of {f'the parameters of {module}' if module else 'its parameters'}"
    else:
        what = f"alone gather{s} a sharded tensor"
        gather = "its all_gather"
    return f"{case.who(ranks)} {what}, in {phrases.place(case.look_of(ranks).where)}: {gather}"


def gather_advice(case: JobView, ranks: RankSet) -> str:
    if gathers(case, ranks) == FSDP:
        return (
            "every forward of an FSDP model is a collective: call it on all ranks, or gather a full state dict on "
            "all and use a copy that is not sharded"
        )
    return "full_tensor() and redistribute() are collectives: call them on all ranks, and use the result on one"


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
    told = [f"{ranks_text(ranks)} with root {root}" for root, ranks in reversed(sides)]
    finding = Finding(
        kind=MISMATCH,
        culprits=str(culprits),
        victims=str(victims),
        confidence=LIKELY,
        summary=f"{call_phrases.call(case.ledger, cause.wait)} has not the same root on all its members: "
        f"{phrases.listed(told)}",
        where=phrases.where(case.look_of(culprits).where),
        evidence=(*_places_of(case, [ranks for _, ranks in sides]), "the roots are read from the calls' own arguments"),
        next=(f"breakranks stacks --rank {culprits}",),
        because="that they differ is certain; which side is wrong the code decides",
        victims_where=call_phrases.call(case.ledger, cause.wait),
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
        summary=call_phrases.sentence(case.ledger, cause),
        where=phrases.where(case.look_of(cause.culprits).where),
        evidence=victims_evidence(case, nodes),
        next=("breakranks stacks --native --threads",),
        because="their flight recorders agree; what holds the call itself up they do not say",
        victims_where=waiting_place(nodes) if nodes else "",
    )
    return Candidate(finding=finding, needs=SLOW_SECONDS, culprits=cause.culprits, victims=victims)
