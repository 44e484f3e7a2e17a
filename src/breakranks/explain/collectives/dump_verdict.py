"""From causes to findings, where only the recorders are known: a folder of dumps."""

from __future__ import annotations

from breakranks.explain import phrases
from breakranks.explain.collectives import call_phrases
from breakranks.explain.collectives.progress import CollectiveProgress
from breakranks.explain.collectives.root_causes import MISMATCH, MISSING, ORDER, STALLED, RootCause, causes
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Diagnosis, Finding, RankClass
from breakranks.rankset import RankSet, ranks_text
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
    confidence, because = _confidence(ledger, cause)
    if young:
        confidence, because = GUESS, f"the dumps were written {phrases.duration(age or 0)} after: the job may just run"
    text = call_phrases.sentence(ledger, cause)
    if cause.kind == MISSING and cause.culprits & ledger.known:
        text += call_phrases.last_call(ledger, cause.culprits & ledger.known)
    trait = call_phrases.trait(ledger, cause.culprits)
    return Finding(
        kind=cause.kind,
        culprits=str(cause.culprits),
        victims=str(cause.victims),
        confidence=confidence,
        summary=text,
        where=phrases.where(frame),
        evidence=(*((trait,) if trait else ()), *call_phrases.proof(ledger, cause)),
        next=_next(ledger, cause),
        because=because,
        victims_where=call_phrases.victims_in(ledger, cause),
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
    last = call_phrases.newest(ledger, known.first)
    return innermost_own(ledger.snapshot.stack(last[1].stack)) if last is not None else None


def _confidence(ledger: CollectiveProgress, cause: RootCause) -> tuple[str, str]:
    if cause.kind == STALLED:
        return GUESS, "everyone is in it; a dump does not say for how long"
    if cause.kind == MISMATCH:
        return LIKELY, "that they differ is certain; which side is wrong the code decides"
    if not cause.culprits <= ledger.known:
        return LIKELY, "there is no dump of it: it may have died, or only its dump is missing"
    if cause.ring and not any(wait.others for _, wait in cause.ring):
        return GUESS, "nobody else is known to be in their groups: the dumps do not name members"
    if cause.kind == ORDER and not any(wait.is_order for _, wait in cause.ring):
        return LIKELY, "that they wait for each other is certain; what should have come first the code decides"
    if cause.ring and any(wait.is_order for _, wait in cause.ring):
        return LIKELY, "each has called both, in another order; on streams of their own they could still complete"
    partly = any(ledger.group(wait.group).source == "seen" for step in cause.steps for wait in step.waits)
    if partly and cause.kind == MISSING:
        return CERTAIN, "its own dump shows that it has not called it (members as far as dumps show them)"
    return CERTAIN, "the dumps of both sides show it"


def _age(ledger: CollectiveProgress, cause: RootCause) -> float | None:
    """How long the oldest wait had lasted when its dump was written, if the file tells."""
    ages = []
    for rank in cause.victims | cause.culprits:
        recorder = ledger.recorders.get(rank)
        if recorder is not None and recorder.time and rank in ledger.waits:
            ages.append(recorder.time - ledger.head(rank).entry.created)
    return max(ages, default=None)


def _next(ledger: CollectiveProgress, cause: RootCause) -> tuple[str, ...]:
    unseen = cause.culprits - ledger.known
    if unseen:
        return (f"look for the end of {ranks_text(unseen)}: its log, its host; a dump of it would settle it",)
    path = next(iter(ledger.recorders.values())).source.rpartition("/")[0] or "."
    return (f"breakranks collectives {path} --history 8",)


def _classes(ledger: CollectiveProgress) -> list[RankClass]:
    """Ranks whose oldest pending call is of the same kind and made at the same place."""
    found: dict[object, list[int]] = {}
    first: dict[object, tuple[str, str, int]] = {}
    groups: dict[object, set[tuple[int, int]]] = {}
    for rank in ledger.known:
        head = ledger.head(rank) if rank in ledger.waits else None
        last = call_phrases.newest(ledger, rank)
        if head is not None:
            activity = "p2p" if head.is_transfer else "collective"
            stack = head.entry.stack
            key: object = (activity, call_phrases.kind(ledger, head), stack)
            groups.setdefault(key, set()).add((head.group, head.entry.number))
            label = (
                f"in {call_phrases.call(ledger, head) if len(groups[key]) == 1 else call_phrases.calls(ledger, head)}"
            )
        else:
            activity, stack = "compute", last[1].stack if last is not None else 0
            label = (
                f"in no call; its last was {call_phrases.entry(ledger, *last)}" if last is not None else "in no call"
            )
            key = (activity, label if last is None else (last[0], last[1].operation), stack)
        found.setdefault(key, []).append(rank)
        first[key] = (activity, label, stack)
    classes = []
    for key, ranks in found.items():
        activity, label, stack = first[key]
        frames = ledger.snapshot.stack(stack)
        where = innermost_own(frames)
        classes.append(
            RankClass(
                ranks=str(RankSet(ranks)), activity=activity, label=label, frames=frames, where=phrases.where(where)
            )
        )
    return sorted(classes, key=lambda one: RankSet.parse(one.ranks).first)
