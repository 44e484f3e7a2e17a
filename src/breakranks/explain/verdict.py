"""From a case to a diagnosis: which findings hold, which of them is the verdict."""

from __future__ import annotations

from msgspec.structs import replace

from breakranks.explain.causes.collective_causes import RanksMove
from breakranks.explain.collectives.dump_verdict import explain_dumps, is_of_dumps
from breakranks.explain.diagnosis import CERTAIN, Diagnosis, Finding, RankClass
from breakranks.explain.frame_meanings import PEER, FrameTable
from breakranks.explain.job_view import HELD_BY_RANK, JobView, RankGroup
from breakranks.explain.rules import (
    host_faults,
    late_ranks,
    network_cut,
    reason_for,
    recorded_calls,
    rendezvous,
    wait_cycle,
)
from breakranks.explain.rules.candidate import Candidate, call_of, folded, union, with_reason
from breakranks.explain.rules.command_host import at_host, to_continue, with_target
from breakranks.explain.rules.rank_cause import MOVING_SECONDS, SLOW_SECONDS, RankCause
from breakranks.explain.values import Subject, where_of
from breakranks.explain.wait_chains import progress, said_together
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Snapshot

# Kinds that say nothing unless somebody waits: every healthy job computes.
_ONLY_WITH_VICTIMS = frozenset({"straggler", "busy-loop", "compile-wait"})
_WORKING = frozenset({"straggler", "busy-loop"})
_MANY_WORK_SECONDS = 120.0
# Whoever else still moves, these stand until a person does something.
_NEVER_PASSES = frozenset({"rank-stopped", "rank-exited", "debugger-prompt", "stale-lock-file", "helper-dead"})
_AFTER_MOVE_SECONDS = 8.0
# Without victims these count only after a longer look: a healthy job does them too.
_WEAK_ALONE = frozenset(
    {"socket-wait", "blocked-io", "subprocess-wait", "data-loading", "lock-held", "thread-deadlock"}
)
_DEADLOCK = ("thread-deadlock", CERTAIN)  # each lock's owner is known: no healthy job does that


def explain(snapshot: Snapshot, table: FrameTable | None = None) -> Diagnosis:
    """What is wrong with the job, with proof; or that nothing is.

    When a longer look could change the answer, ``settled`` is False and ``wait`` says how long: take another
    sample and ask again.
    """
    if is_of_dumps(snapshot):
        return explain_dumps(snapshot)
    found = _explain(JobView(snapshot, table))
    if not snapshot.target:
        return found
    return replace(
        found,
        verdict=with_target(found.verdict, snapshot.target) if found.verdict is not None else None,
        findings=tuple(with_target(one, snapshot.target) for one in found.findings),
    )


def _explain(case: JobView) -> Diagnosis:
    alike = sorted(folded(case, case.nodes), key=lambda some: union(some).first)
    classes = tuple(_class(case, some) for some in alike)
    begun = rendezvous.proposal(case)
    if begun is not None:
        return _starting(*begun, classes)
    proposals = [_in_motion(case, one) for one in _propose(case)]
    looks = max((len(rank.process.samples) for rank in case.snapshot.ranks), default=0)
    held = [
        _with_progress(case, one) for one in proposals if _standing(case, one) >= one.needs and looks >= one.samples
    ]
    if held:
        best = max(held, key=lambda one: _rank(case, one))
        findings = _findings(case, best, held)
        return Diagnosis(
            verdict=best.finding, findings=(*findings, *host_faults.notes(case, findings)), classes=classes
        )
    if proposals and not _progress(case):
        wait = min(one.needs - _standing(case, one) for one in proposals)
        first = min(proposals, key=lambda one: one.needs)
        told = host_faults.notes(case)  # whatever the job does
        return Diagnosis(
            verdict=None,
            findings=told,
            classes=classes,
            settled=False,
            wait=max(0.1, wait),
            pending=first.finding,
            known_end=first.known_end,
        )
    return Diagnosis(verdict=None, findings=(*_informational(case), *host_faults.notes(case)), classes=classes)


def _starting(one: Candidate, stood: float, classes: tuple[RankClass, ...]) -> Diagnosis:
    """There are no ranks yet: all that can be said is what the launcher waits for."""
    if stood >= one.needs:
        return Diagnosis(verdict=one.finding, findings=(one.finding,), classes=classes)
    return Diagnosis(
        verdict=None,
        findings=(),
        classes=classes,
        settled=False,
        wait=one.needs - stood,
        pending=one.finding,
    )


def _with_progress(case: JobView, one: Candidate) -> Candidate:
    """The same, with how far its ranks have come in their loops, where they themselves have said it."""
    said = progress(case.spoke, one.culprits, one.victims)
    if said is None:
        return one
    return one._replace(finding=replace(one.finding, evidence=(*one.finding.evidence, said)))


def _in_motion(case: JobView, one: Candidate) -> Candidate:
    """If a rank that waits was seen to come there just now, the job moved a moment ago: what a healthy job
    does too must then have stood for longer, and one that naps between two steps much longer."""
    if 1.0 < one.needs < MOVING_SECONDS and any(case.looks[rank].moves for rank in one.victims if rank in case.looks):
        naps = any(case.looks[rank].activity.word == "sleep" for rank in one.culprits if rank in case.looks)
        return one._replace(needs=MOVING_SECONDS if naps else max(one.needs, _AFTER_MOVE_SECONDS))
    return one


def _propose(case: JobView) -> list[Candidate]:
    waiting = case.waiting()
    roots = list(case.roots())
    found = [*late_ranks.gone(case, waiting), *host_faults.unreachable(case, waiting)]
    cut = network_cut.cut(case, waiting)
    found += [cut] if cut is not None else []
    lost = host_faults.lost_ranks(case)
    unexplained: list[RankGroup] = []
    by_cause: dict[tuple[str, str, object], tuple[RankSet, RankCause]] = {}
    awaited = case.awaited() if waiting else None
    for node in roots:
        reason = reason_for(case, node.look)
        if lost and (reason is None or reason.kind not in _NEVER_PASSES):
            # What these did when they were last seen explains nothing any more.
            node = node._replace(ranks=node.ranks - lost)
            if not node.ranks:
                continue
        if awaited is not None and (reason is None or reason.kind not in _NEVER_PASSES):
            # It is known for whom the others wait: who is none of those holds nobody up.
            node = node._replace(ranks=node.ranks & awaited)
            if not node.ranks:
                continue
        if reason is None:
            unexplained.append(node)
            continue
        if not waiting and (reason.kind in _ONLY_WITH_VICTIMS or not reason.alone):
            continue
        if not waiting and reason.kind in _WEAK_ALONE and (reason.kind, reason.confidence) != _DEADLOCK:
            reason = reason._replace(needs=max(reason.needs, SLOW_SECONDS))
        reason = at_host(case, node.look, reason)
        key = (reason.kind, node.look.activity.about, reason.where)
        ranks, first = by_cause.get(key, (RankSet(), reason))
        by_cause[key] = (ranks | node.ranks, first)
    for ranks, reason in host_faults.together(case, by_cause).values():
        if reason.kind in _WORKING and len(ranks) > sum(len(node.ranks) for node in waiting):
            # Most compute and a few wait for them: that is how a parameter server or a logger spends its day.
            reason = reason._replace(needs=_MANY_WORK_SECONDS)
        if reason.kind == "rank-stopped" and len(ranks) > 1:
            reason = reason._replace(next=to_continue(case, ranks) or reason.next)
        found.append(with_reason(case, ranks, reason, waiting))
    holding = wait_cycle.holders(case, unexplained, waiting)
    if holding is not None:
        found.append(holding)
    plain = late_ranks.plain(case, unexplained, [node for node in waiting if node.reason not in (HELD_BY_RANK, "held")])
    if plain is not None:
        found.append(plain)
    recorded = recorded_calls.proposals(case, waiting)
    if not found and not recorded and not case.gone:
        cycle = wait_cycle.deadlock(case, waiting)
        if cycle is not None:
            found.append(cycle)
    return [*found, *recorded]


def _standing(case: JobView, one: Candidate) -> float:
    """For how long this has held: the longest that a victim stands, unless one just moved. A culprit that works
    may leave and come back unseen; whoever waits for it does not."""
    wait = one.victims | one.culprits if one.mutual else one.victims
    if any(case.looks[rank].stands <= 0 for rank in wait if rank in case.looks):
        return 0.0 if one.needs or one.finding.kind in _NEVER_PASSES else -1.0
    return case.stands(one.victims & case.seen or one.culprits)


def _progress(case: JobView) -> bool:
    """Ranks that wait for ranks were seen to come out and wait again: the job moves."""
    return any(node.look.moved and node.look.moves > 1 for node in case.waiting())


def _rank(case: JobView, one: Candidate) -> tuple[bool, bool, bool, float]:
    """What makes one finding the verdict: it never passes by itself, it is certain, others wait for it."""
    return (
        one.needs <= 1.0,
        bool(one.victims),
        one.finding.confidence == CERTAIN,
        case.stands(one.culprits),
    )


def _findings(case: JobView, best: Candidate, held: list[Candidate]) -> tuple[Finding, ...]:
    findings = [best.finding]
    implied = late_ranks.missing_too(case, best, case.waiting())
    if implied is not None:
        findings.append(implied)
    findings.extend(one.finding for one in held if one is not best)
    return tuple(findings)


def _informational(case: JobView) -> tuple[Finding, ...]:
    moving = RankSet(rank for rank, one in case.looks.items() if one.moved or one.busy > 0.05)
    if not moving:
        return ()
    finding = Finding(
        kind="moving",
        culprits="",
        victims="",
        confidence=CERTAIN,
        cause=RanksMove(moving=len(moving), seen=len(case.seen)),
        subject=Subject(ranks=str(moving)),
        informational=True,
    )
    return (finding,)


def _class(case: JobView, alike: list[RankGroup]) -> RankClass:
    one = alike[0].look
    ranks = union(alike)
    frames = case.snapshot.stack(one.thread.stack) if one.thread is not None else ()
    return RankClass(
        ranks=str(ranks),
        doing=one.doing,
        call=call_of(case, alike),
        frames=frames,
        state=one.state,
        moving=one.moved or (one.busy >= 0.05 and one.activity.word not in PEER),
        idle=case.stands(ranks),
        where=where_of(one.where),
        said=said_together(case.spoke, ranks),
    )
