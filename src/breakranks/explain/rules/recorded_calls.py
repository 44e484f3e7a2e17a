"""collective-mismatch, collective-order-deadlock, p2p-deadlock, collective-stalled: by the flight recorders."""

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
from breakranks.explain.finding_parts import CallName, Subject, WaitPlace, where_of
from breakranks.explain.frame_meanings import DTENSOR, FSDP
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules.candidate import FindingCandidate, victims_evidence, waiting_place
from breakranks.explain.rules.rank_cause import MOMENT_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Frame


def proposals(job: JobView, waiting: list[RankGroup]) -> list[FindingCandidate]:
    """Return the candidates that the recorders alone explain. Ranks that are merely missing are explained by their
    stacks: see ``absent_ranks``."""
    if not job.progress or not any(node.call is not None for node in waiting):
        return []
    standing = RankSet(job.calls)
    found = []
    for cause in causes(job.progress):
        core = cause.mismatch.ranks if cause.mismatch is not None else cause.culprits
        # A rank may have a call under way and do something else: then it is not blocked in the call.
        if cause.kind == MISSING or not core & job.seen <= standing:
            continue
        found.append(_stalled(job, cause) if cause.kind == STALLED else _proposal(job, cause))
    quiet = job.asleep() and not job.unseen
    return [
        candidate._replace(needs=MOMENT_SECONDS) if candidate.needs == PATIENCE_SECONDS and quiet else candidate
        for candidate in found
    ]


def _proposal(job: JobView, cause: RootCause) -> FindingCandidate:
    lone = _lone_gather(job, cause)
    culprits = lone or cause.culprits
    victims = ((cause.victims | cause.culprits) - culprits) & job.seen
    # It is certain that they disagree, or wait in a ring. It is not certain which side is wrong, whether an order or a
    # skipped call is the reason, or whether separate streams let calls overtake each other.
    unsure = cause.kind != P2P or any(wait.is_order for _, wait in cause.ring)
    finding = Finding(
        kind=cause.kind,
        culprits=str(culprits),
        victims=str(victims),
        confidence=LIKELY if unsure else CERTAIN,
        cause=_gather_cause(job, cause, lone) if lone is not None else call_facts.cause_of(job.progress, cause),
        subject=Subject(ranks=str(culprits)),
        held_up=call_facts.held_up(cause) if lone is None else None,
        victims_at=call_facts.victims_at(job.progress, cause) or waiting_place(job.waiting()),
        where=where_of(job.view_of(culprits & job.seen).where),
        evidence=(
            *call_facts.trait(job.progress, culprits),
            *_places(job, cause),
            *call_facts.proof(job.progress, cause),
            *((GatherAdvice(fsdp=gathers(job, lone) == FSDP),) if lone is not None else ()),
        ),
        next=(RunBreakranks(command="collectives", args=("--rank", str(culprits), "--history", "8")),),
        grounds=("recorders-differ" if unsure else "recorders-show",),
    )
    return FindingCandidate(finding=finding, needs=PATIENCE_SECONDS, culprits=culprits, victims=victims)


def _sides(cause: RootCause) -> list[tuple[RankSet, int, int, int]]:
    """Return each side of a cause: its ranks, and the group, number and operation of its call."""
    if cause.mismatch is not None:
        return [(ranks, cause.mismatch.group, cause.mismatch.number, row) for ranks, row in cause.mismatch.sides]
    return [(ranks, wait.group, wait.entry.number, wait.entry.operation) for ranks, wait in cause.ring]


def _places(job: JobView, cause: RootCause) -> tuple[RanksAtLine, ...]:
    """Return where in their code the ranks are: the recorder of a live rank is read without stacks."""
    return _places_of(job, [ranks for ranks, *_ in _sides(cause)])


def _places_of(job: JobView, sides: list[RankSet]) -> tuple[RanksAtLine, ...]:
    found: dict[Frame | None, RankSet] = {}
    for ranks in sides[:8]:
        for rank in ranks & job.seen:
            frame = job.views[rank].where
            found[frame] = found.get(frame, RankSet()) | RankSet([rank])
    return tuple(
        RanksAtLine(ranks=str(ranks), where=where)
        for frame, ranks in list(found.items())[:8]
        if (where := where_of(frame)) is not None
    )


def _lone_gather(job: JobView, cause: RootCause) -> RankSet | None:
    """Return the side that gathers what is sharded over all ranks, if the others do not and are at least as many."""
    sides = _sides(cause)
    gathering = [ranks for ranks, *_ in sides if gathers(job, ranks)]
    everyone = sum(len(ranks) for ranks, *_ in sides)
    return gathering[0] if len(gathering) == 1 and 2 * len(gathering[0]) <= everyone else None


def gathers(job: JobView, ranks: RankSet) -> str:
    """Return what all of these ranks gather, ``FSDP`` or ``DTENSOR``; empty if they do something else."""
    contexts = {job.views[rank].activity.context for rank in ranks & job.seen}
    return contexts.pop() if len(contexts) == 1 and contexts <= {FSDP, DTENSOR} else ""


def _gather_cause(job: JobView, cause: RootCause, ranks: RankSet) -> Cause:
    sides = _sides(cause)
    _, group, number, _ = next(side for side in sides if side[0] == ranks)
    others = tuple(
        CallSide(ranks=str(side), call=CallName(operation=job.progress.name(row)))
        for side, _, _, row in sides
        if side != ranks
    )
    name = call_facts.group_name(job.progress, group)
    return LoneGather(gather=gather_of(job, ranks), number=number, group=name, others=others)


def gather_of(job: JobView, ranks: RankSet) -> Gather:
    """Return what these ranks gather alone, and where."""
    return Gather(
        subject=job.subject(ranks),
        fsdp=gathers(job, ranks) == FSDP,
        module=_module(job, ranks.first),
        where=where_of(job.view_of(ranks).where),
    )


def _module(job: JobView, rank: int) -> str:
    recorder = job.progress.recorders.get(rank)
    return recorder.notes.get("fsdp", "") if recorder is not None else ""


def _roots(job: JobView, cause: RootCause) -> dict[str, RankSet]:
    """Return the root that each rank has passed to a broadcast, reduce, gather or scatter: recorders do not contain
    it."""
    found: dict[str, RankSet] = {}
    for rank in cause.culprits & job.seen:
        view = job.views[rank]
        hints = view.thread.hints if view.thread is not None else {}
        roots = [hints.get(f"{view.activity.op}.{end}", "") for end in ("src", "dst", "group_src", "group_dst")]
        root = next((text for text in roots if text.isdigit()), "")
        found[root] = found.get(root, RankSet()) | RankSet([rank])
    return found


def _root_differs(job: JobView, cause: RootCause, roots: dict[str, RankSet]) -> FindingCandidate:
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
            call=call_facts.call(job.progress, cause.wait),
            sides=tuple(RootSide(root=root, ranks=str(ranks)) for root, ranks in reversed(sides)),
        ),
        subject=Subject(ranks=str(culprits)),
        victims_at=WaitPlace(call=call_facts.call(job.progress, cause.wait)),
        where=where_of(job.view_of(culprits).where),
        evidence=(*_places_of(job, [ranks for _, ranks in sides]), FromArguments()),
        next=(RunBreakranks(command="stacks", args=("--rank", str(culprits))),),
        grounds=("differ-certain",),
    )
    return FindingCandidate(finding=finding, needs=PATIENCE_SECONDS, culprits=culprits, victims=victims)


def _stalled(job: JobView, cause: RootCause) -> FindingCandidate:
    """Return the candidate for a call that all members are in, with the same sizes, and that does not end."""
    assert cause.wait is not None
    roots = _roots(job, cause)
    if len(roots) > 1 and "" not in roots:
        return _root_differs(job, cause, roots)
    nodes = [node for node in job.waiting() if node.ranks & cause.culprits]
    victims = cause.victims & job.seen
    finding = Finding(
        kind=STALLED,
        culprits=str(cause.culprits),
        victims=str(victims),
        confidence=GUESS,
        cause=call_facts.cause_of(job.progress, cause),
        subject=Subject(ranks=str(cause.culprits)),
        victims_at=waiting_place(nodes) if nodes else None,
        where=where_of(job.view_of(cause.culprits).where),
        evidence=victims_evidence(job, nodes),
        next=(RunBreakranks(command="stacks", args=("--native", "--threads")),),
        grounds=("recorders-agree",),
    )
    return FindingCandidate(finding=finding, needs=SLOW_SECONDS, culprits=cause.culprits, victims=victims)
