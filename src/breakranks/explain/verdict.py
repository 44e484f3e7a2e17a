"""From a snapshot to a diagnosis: which findings hold, and which of them is the verdict."""

from __future__ import annotations

from msgspec.structs import replace

from breakranks.explain.causes.collective_causes import RanksMove
from breakranks.explain.collectives.dump_verdict import explain_dumps
from breakranks.explain.diagnosis import CERTAIN, Diagnosis, Finding, RankClass
from breakranks.explain.finding_parts import Subject, where_of
from breakranks.explain.frame_meanings import PEER, FrameTable
from breakranks.explain.job_view import HELD_BY_RANK, JobView, RankGroup
from breakranks.explain.rules import (
    absent_ranks,
    host_faults,
    network_cut,
    reason_for,
    recorded_calls,
    rendezvous,
    wait_cycle,
)
from breakranks.explain.rules.action_hosts import at_host, to_continue, with_target
from breakranks.explain.rules.candidate import FindingCandidate, call_of, folded, union, with_reason
from breakranks.explain.rules.rank_cause import MOVING_SECONDS, SLOW_SECONDS, RankCause
from breakranks.explain.wait_chains import common_report, progress
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Snapshot, last_samples

# Kinds that count only if ranks wait: every healthy job computes.
_ONLY_WITH_VICTIMS = frozenset({"straggler", "busy-loop", "compile-wait"})
_WORKING = frozenset({"straggler", "busy-loop"})
_MANY_WORK_SECONDS = 120.0
# These last until a person acts, even if other ranks move.
_NEVER_PASSES = frozenset({"rank-stopped", "rank-exited", "debugger-prompt", "stale-lock-file", "helper-dead"})
_AFTER_MOVE_SECONDS = 8.0
# Without victims these count only after a longer time: a healthy job shows them too.
_WEAK_ALONE = frozenset(
    {"socket-wait", "blocked-io", "subprocess-wait", "data-loading", "lock-held", "thread-deadlock"}
)
_DEADLOCK = ("thread-deadlock", CERTAIN)  # the owner of each lock is known; no healthy job does that


def explain(snapshot: Snapshot, table: FrameTable | None = None) -> Diagnosis:
    """Return what is wrong with the job, with proof, or that nothing is.

    If more samples could change the answer, ``settled`` is False and ``wait`` is how many seconds to wait before the
    next sample.
    """
    if snapshot.of_dumps:
        return explain_dumps(snapshot)
    found = _explain(JobView(snapshot, table))
    if not snapshot.target:
        return found
    return replace(
        found,
        verdict=with_target(found.verdict, snapshot.target) if found.verdict is not None else None,
        findings=tuple(with_target(finding, snapshot.target) for finding in found.findings),
    )


def explain_live(snapshot: Snapshot) -> Diagnosis:
    """Return the verdict of all samples, and the classes of the newest two: what the ranks do now."""
    diagnosis = explain(snapshot)
    unchanged = {rank_class.ranks: rank_class for rank_class in diagnosis.classes if not rank_class.moving}
    newest = explain(last_samples(snapshot, 2)).classes
    return replace(diagnosis, classes=tuple(unchanged.get(rank_class.ranks, rank_class) for rank_class in newest))


def _explain(job: JobView) -> Diagnosis:
    alike = sorted(folded(job, job.nodes), key=lambda some: union(some).first)
    classes = tuple(_class(job, some) for some in alike)
    begun = rendezvous.proposal(job)
    if begun is not None:
        return _starting(*begun, classes)
    proposals = [_in_motion(job, candidate) for candidate in _propose(job)]
    held = [
        _with_progress(job, candidate)
        for candidate in proposals
        if _seconds_held(job, candidate) >= candidate.needs and job.sampled.number >= candidate.samples
    ]
    if held:
        best = max(held, key=lambda candidate: _rank(job, candidate))
        findings = _findings(job, best, held)
        return Diagnosis(verdict=best.finding, findings=(*findings, *host_faults.notes(job, findings)), classes=classes)
    if proposals and not _progress(job):
        wait = min(candidate.needs - _seconds_held(job, candidate) for candidate in proposals)
        first = min(proposals, key=lambda candidate: candidate.needs)
        host_notes = host_faults.notes(job)  # they do not depend on the state of the job
        return Diagnosis(
            verdict=None,
            findings=host_notes,
            classes=classes,
            settled=False,
            wait=max(0.1, wait),
            pending=first.finding,
            known_end=first.known_end,
        )
    return Diagnosis(verdict=None, findings=(*_informational(job), *host_faults.notes(job)), classes=classes)


def _starting(candidate: FindingCandidate, stood: float, classes: tuple[RankClass, ...]) -> Diagnosis:
    """Return the diagnosis of a job without ranks: what the launcher waits for."""
    if stood >= candidate.needs:
        return Diagnosis(verdict=candidate.finding, findings=(candidate.finding,), classes=classes)
    return Diagnosis(
        verdict=None,
        findings=(),
        classes=classes,
        settled=False,
        wait=candidate.needs - stood,
        pending=candidate.finding,
    )


def _with_progress(job: JobView, candidate: FindingCandidate) -> FindingCandidate:
    """Return the candidate with the loop counters of its ranks, where introspection shows them."""
    counters = progress(job.reporting, candidate.culprits, candidate.victims)
    if counters is None:
        return candidate
    return candidate._replace(finding=replace(candidate.finding, evidence=(*candidate.finding.evidence, counters)))


def _in_motion(job: JobView, candidate: FindingCandidate) -> FindingCandidate:
    """Return the candidate with a longer ``needs`` if the job has just moved.

    If a rank that waits was seen to arrive, the job moved a moment ago. A state that a healthy job shows too must then
    last longer, and one with short sleeps between steps much longer.
    """
    if 1.0 < candidate.needs < MOVING_SECONDS and any(
        job.views[rank].moves for rank in candidate.victims if rank in job.views
    ):
        naps = any(job.views[rank].activity.word == "sleep" for rank in candidate.culprits if rank in job.views)
        return candidate._replace(needs=MOVING_SECONDS if naps else max(candidate.needs, _AFTER_MOVE_SECONDS))
    return candidate


def _propose(job: JobView) -> list[FindingCandidate]:
    waiting = job.waiting()
    roots = list(job.roots())
    found = [*absent_ranks.gone(job, waiting), *host_faults.unreachable(job, waiting)]
    cut = network_cut.cut(job, waiting)
    found += [cut] if cut is not None else []
    lost = host_faults.lost_ranks(job)
    unexplained: list[RankGroup] = []
    by_cause: dict[tuple[str, str, object], tuple[RankSet, RankCause]] = {}
    awaited = job.awaited() if waiting else None
    for node in roots:
        reason = reason_for(job, node.view)
        if lost and (reason is None or reason.kind not in _NEVER_PASSES):
            # Their last sample is old, so it explains nothing.
            node = node._replace(ranks=node.ranks - lost)
            if not node.ranks:
                continue
        if awaited is not None and (reason is None or reason.kind not in _NEVER_PASSES):
            # The awaited ranks are known exactly: the others delay no rank.
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
        reason = at_host(job, node.view, reason)
        activity = node.view.activity
        key = (reason.kind, reason.about or activity.about, (reason.place, activity.peer))
        ranks, first = by_cause.get(key, (RankSet(), reason))
        by_cause[key] = (ranks | node.ranks, first._replace(samples=max(first.samples, reason.samples)))
    for ranks, reason in host_faults.together(job, by_cause).values():
        if reason.kind in _WORKING and len(ranks) > sum(len(node.ranks) for node in waiting):
            # Most ranks compute and a few wait for them: normal for a parameter server or a logger.
            reason = reason._replace(needs=_MANY_WORK_SECONDS)
        if reason.kind == "rank-stopped" and len(ranks) > 1:
            reason = reason._replace(next=to_continue(job, ranks) or reason.next)
        found.append(with_reason(job, ranks, reason, waiting))
    holding = wait_cycle.holders(job, unexplained, waiting)
    if holding is not None:
        found.append(holding)
    plain = absent_ranks.plain(
        job, unexplained, [node for node in waiting if node.reason not in (HELD_BY_RANK, "held")]
    )
    if plain is not None:
        found.append(plain)
    recorded = recorded_calls.proposals(job, waiting)
    if not found and not recorded and not job.gone:
        cycle = wait_cycle.deadlock(job, waiting)
        if cycle is not None:
            found.append(cycle)
    return [*found, *recorded]


def _seconds_held(job: JobView, candidate: FindingCandidate) -> float:
    """Return for how long the candidate has held: the longest time that a victim has not moved, or 0 if one has just
    moved. A culprit that works may leave and come back unseen; a rank that waits for it does not."""
    wait = candidate.victims | candidate.culprits if candidate.mutual else candidate.victims
    if any(job.views[rank].stands <= 0 for rank in wait if rank in job.views):
        return 0.0 if candidate.needs or candidate.finding.kind in _NEVER_PASSES else -1.0
    return job.stands(candidate.victims & job.seen or candidate.culprits)


def _progress(job: JobView) -> bool:
    """Whether ranks that wait for ranks were seen to return and wait again: then the job moves."""
    return any(node.view.moved and node.view.moves > 1 for node in job.waiting())


def _rank(job: JobView, candidate: FindingCandidate) -> tuple[bool, bool, bool, float]:
    """Return the sort key of the verdict: the wait never ends by itself, ranks wait for it, it is certain."""
    return (
        candidate.needs <= 1.0,
        bool(candidate.victims),
        candidate.finding.confidence == CERTAIN,
        job.stands(candidate.culprits),
    )


def _findings(job: JobView, best: FindingCandidate, held: list[FindingCandidate]) -> tuple[Finding, ...]:
    findings = [best.finding]
    implied = absent_ranks.missing_too(job, best, job.waiting())
    if implied is not None:
        findings.append(implied)
    findings.extend(candidate.finding for candidate in held if candidate is not best)
    return tuple(findings)


def _informational(job: JobView) -> tuple[Finding, ...]:
    moving = RankSet(rank for rank, view in job.views.items() if view.moved or view.busy > 0.05)
    if not moving:
        return ()
    finding = Finding(
        kind="moving",
        culprits="",
        victims="",
        confidence=CERTAIN,
        cause=RanksMove(moving=len(moving), seen=len(job.seen)),
        subject=Subject(ranks=str(moving)),
        informational=True,
    )
    return (finding,)


def _class(job: JobView, alike: list[RankGroup]) -> RankClass:
    view = alike[0].view
    ranks = union(alike)
    frames = job.snapshot.stack(view.thread.stack) if view.thread is not None else ()
    return RankClass(
        ranks=str(ranks),
        doing=view.doing,
        call=call_of(job, alike),
        frames=frames,
        state=view.state,
        moving=view.moved or (view.busy >= 0.05 and view.activity.word not in PEER),
        idle=job.stands(ranks),
        where=where_of(view.where),
        reported=common_report(job.reporting, ranks),
    )
