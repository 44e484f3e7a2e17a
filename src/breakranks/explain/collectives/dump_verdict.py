"""From causes to findings, where only the recorders are known: a folder of dumps."""

from __future__ import annotations

from breakranks.explain.actions import Action, Advise, RunBreakranks
from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.progress import CollectiveProgress
from breakranks.explain.collectives.root_causes import MISMATCH, MISSING, ORDER, STALLED, RootCause, causes
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Diagnosis, Finding, RankClass
from breakranks.explain.values import CallName, Doing, Subject, where_of
from breakranks.rankset import RankSet
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.model import Frame, Snapshot

# A wait that was this young when its dump was written may be a job that simply runs.
_YOUNG_SECONDS = 2.0


def is_of_dumps(snapshot: Snapshot) -> bool:
    """Whether nothing but recorders is known of the ranks."""
    return bool(snapshot.ranks) and all(rank.recorder is not None and not rank.process.pid for rank in snapshot.ranks)


def explain_dumps(snapshot: Snapshot) -> Diagnosis:
    """What the dumps say. Whether ranks moved cannot be seen in them: a dump is one moment."""
    ledger = CollectiveProgress(snapshot)
    found = [_finding(ledger, cause) for cause in causes(ledger)]
    verdict = next((one for one in found if not one.informational), None)
    if verdict is not None:
        found.sort(key=lambda one: one is not verdict)
    return Diagnosis(verdict=verdict, findings=tuple(found), classes=tuple(_classes(ledger)))


def _finding(ledger: CollectiveProgress, cause: RootCause) -> Finding:
    frame = _where(ledger, cause)
    age = _age(ledger, cause)
    # Calls that differ, and rings, are there for good; that a rank has not come yet may be how the job runs.
    young = cause.kind in (MISSING, STALLED) and age is not None and age < _YOUNG_SECONDS
    confidence, ground = (GUESS, "young-dumps") if young else _confidence(ledger, cause)
    return Finding(
        kind=cause.kind,
        culprits=str(cause.culprits),
        victims=str(cause.victims),
        confidence=confidence,
        cause=call_facts.cause_of(ledger, cause, last=cause.kind == MISSING),
        subject=Subject(ranks=str(cause.culprits)),
        held_up=call_facts.held_up(cause),
        victims_at=call_facts.victims_at(ledger, cause),
        where=where_of(frame),
        evidence=(*call_facts.trait(ledger, cause.culprits), *call_facts.proof(ledger, cause)),
        next=_next(ledger, cause),
        grounds=(ground,),
        grounds_seconds=age or 0.0,
        informational=cause.kind == STALLED or young,
    )


def _where(ledger: CollectiveProgress, cause: RootCause) -> Frame | None:
    """Where in the user's code the culprit made its last call."""
    known = cause.culprits & ledger.known
    if cause.kind == STALLED or not known:
        return None
    number = cause.mismatch.number if cause.mismatch is not None else None
    group = cause.mismatch.group if cause.mismatch is not None else None
    for track in ledger.recorders[known.first].tracks:
        for entry in track.pending if number is not None and track.group == group else ():
            if entry.number == number:
                return innermost_own(ledger.snapshot.stack(entry.stack))
    last = call_facts.newest(ledger, known.first)
    return innermost_own(ledger.snapshot.stack(last[1].stack)) if last is not None else None


def _confidence(ledger: CollectiveProgress, cause: RootCause) -> tuple[str, str]:
    """How sure it is, and the ground for that."""
    if cause.kind == STALLED:
        return GUESS, "dump-no-time"
    if cause.kind == MISMATCH:
        return LIKELY, "differ-certain"
    if not cause.culprits <= ledger.known:
        return LIKELY, "no-dump"
    if cause.ring and not any(wait.others for _, wait in cause.ring):
        return GUESS, "members-unknown"
    if cause.kind == ORDER and not any(wait.is_order for _, wait in cause.ring):
        return LIKELY, "ring-certain"
    if cause.ring and any(wait.is_order for _, wait in cause.ring):
        return LIKELY, "orders-differ"
    partly = any(ledger.group(wait.group).source == "seen" for step in cause.steps for wait in step.waits)
    if partly and cause.kind == MISSING:
        return CERTAIN, "own-dump"
    return CERTAIN, "both-dumps"


def _age(ledger: CollectiveProgress, cause: RootCause) -> float | None:
    """How long the oldest wait had lasted when its dump was written, if the file tells."""
    ages = []
    for rank in cause.victims | cause.culprits:
        recorder = ledger.recorders.get(rank)
        if recorder is not None and recorder.time and rank in ledger.waits:
            ages.append(recorder.time - ledger.head(rank).entry.created)
    return max(ages, default=None)


def _next(ledger: CollectiveProgress, cause: RootCause) -> tuple[Action, ...]:
    unseen = cause.culprits - ledger.known
    if unseen:
        return (Advise(what="find-dump", ranks=str(unseen)),)
    path = next(iter(ledger.recorders.values())).source.rpartition("/")[0] or "."
    return (RunBreakranks(command="collectives", path=path, args=("--history", "8")),)


def _classes(ledger: CollectiveProgress) -> list[RankClass]:
    """Ranks whose oldest pending call is of the same kind and made at the same place."""
    found: dict[object, list[int]] = {}
    first: dict[object, tuple[str, CallName | None, bool, int]] = {}
    groups: dict[object, set[tuple[int, int]]] = {}
    for rank in ledger.known:
        head = ledger.head(rank) if rank in ledger.waits else None
        last = call_facts.newest(ledger, rank)
        call: CallName | None
        if head is not None:
            activity = "p2p" if head.is_transfer else "collective"
            stack = head.entry.stack
            key: object = (activity, call_facts.kind(ledger, head), stack)
            groups.setdefault(key, set()).add((head.group, head.entry.number))
            alone = len(groups[key]) == 1
            call = call_facts.call(ledger, head) if alone else call_facts.calls(ledger, head)
        else:
            activity, stack = "compute", last[1].stack if last is not None else 0
            call = call_facts.entry(ledger, *last) if last is not None else None
            key = (activity, None if last is None else (last[0], last[1].operation), stack)
        found.setdefault(key, []).append(rank)
        first[key] = (activity, call, head is None, stack)
    classes = []
    for key, ranks in found.items():
        activity, call, ended, stack = first[key]
        frames = ledger.snapshot.stack(stack)
        where = where_of(innermost_own(frames))
        classes.append(
            RankClass(
                ranks=str(RankSet(ranks)),
                doing=Doing(word=activity, where=where),
                call=call,
                last=ended,
                frames=frames,
                where=where,
            )
        )
    return sorted(classes, key=lambda one: RankSet.parse(one.ranks).first)
