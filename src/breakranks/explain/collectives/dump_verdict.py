"""From causes to findings, where only flight recorders are known: a folder of dumps."""

from __future__ import annotations

import posixpath

from breakranks.explain.actions import Action, Advise, RunBreakranks
from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.collective_progress import CollectiveProgress
from breakranks.explain.collectives.root_causes import MISMATCH, MISSING, ORDER, STALLED, RootCause, causes
from breakranks.explain.collectives.wait_ages import YOUNG_SECONDS
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Diagnosis, Finding, RankClass
from breakranks.explain.finding_parts import CallName, Doing, Subject, where_of
from breakranks.rankset import RankSet
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.model import Frame, Snapshot


def explain_dumps(snapshot: Snapshot) -> Diagnosis:
    """Return the diagnosis of dumps. A dump is one moment, so it does not show whether ranks move."""
    progress = CollectiveProgress(snapshot)
    found = [_finding(progress, cause) for cause in causes(progress)]
    verdict = next((finding for finding in found if not finding.informational), None)
    if verdict is not None:
        found.sort(key=lambda finding: finding is not verdict)
    return Diagnosis(verdict=verdict, findings=tuple(found), classes=tuple(_classes(progress)))


def _finding(progress: CollectiveProgress, cause: RootCause) -> Finding:
    frame = _where(progress, cause)
    age = _age(progress, cause)
    # Calls that differ, and rings, are permanent. A rank that has not arrived yet may be normal.
    young = cause.kind in (MISSING, STALLED) and age is not None and age < YOUNG_SECONDS
    confidence, ground = (GUESS, "young-dumps") if young else _confidence(progress, cause)
    return Finding(
        kind=cause.kind,
        culprits=str(cause.culprits),
        victims=str(cause.victims),
        confidence=confidence,
        cause=call_facts.cause_of(progress, cause, last=cause.kind == MISSING),
        subject=Subject(ranks=str(cause.culprits)),
        held_up=call_facts.held_up(cause),
        victims_at=call_facts.victims_at(progress, cause),
        where=where_of(frame),
        evidence=(*call_facts.trait(progress, cause.culprits), *call_facts.proof(progress, cause)),
        next=_next(progress, cause),
        grounds=(ground,),
        grounds_seconds=age or 0.0,
        informational=cause.kind == STALLED or young,
    )


def _where(progress: CollectiveProgress, cause: RootCause) -> Frame | None:
    """Return where in the user's code the culprit made its last call."""
    known = cause.culprits & progress.known
    if cause.kind == STALLED or not known:
        return None
    number = cause.mismatch.number if cause.mismatch is not None else None
    group = cause.mismatch.group if cause.mismatch is not None else None
    for track in progress.recorders[known.first].tracks:
        for entry in track.pending if number is not None and track.group == group else ():
            if entry.number == number:
                return innermost_own(progress.snapshot.stack(entry.stack))
    last = call_facts.newest(progress, known.first)
    return innermost_own(progress.snapshot.stack(last[1].stack)) if last is not None else None


def _confidence(progress: CollectiveProgress, cause: RootCause) -> tuple[str, str]:
    """Return the confidence, and the ground for it."""
    if cause.kind == STALLED:
        return GUESS, "dump-no-time"
    if cause.kind == MISMATCH:
        return LIKELY, "differ-certain"
    if not cause.culprits <= progress.known:
        return LIKELY, "no-dump"
    if cause.ring and not any(wait.others for _, wait in cause.ring):
        return GUESS, "members-unknown"
    if cause.kind == ORDER and not any(wait.is_order for _, wait in cause.ring):
        return LIKELY, "ring-certain"
    if cause.ring and any(wait.is_order for _, wait in cause.ring):
        return LIKELY, "orders-differ"
    partly = any(progress.group(wait.group).source == "seen" for step in cause.steps for wait in step.waits)
    if partly and cause.kind == MISSING:
        return CERTAIN, "own-dump"
    return CERTAIN, "both-dumps"


def _age(progress: CollectiveProgress, cause: RootCause) -> float | None:
    """Return how long the oldest wait had lasted when its dump was written, if the file contains that time."""
    ages = []
    for rank in cause.victims | cause.culprits:
        recorder = progress.recorders.get(rank)
        if recorder is not None and recorder.time and rank in progress.waits:
            ages.append(recorder.time - progress.head(rank).entry.created)
    return max(ages, default=None)


def _next(progress: CollectiveProgress, cause: RootCause) -> tuple[Action, ...]:
    unseen = cause.culprits - progress.known
    if unseen:
        return (Advise(what="find-dump", ranks=str(unseen)),)
    folder = _common_folder([recorder.source for recorder in progress.recorders.values()])
    return (RunBreakranks(command="collectives", path=folder, args=("--history", "8")),)


def _common_folder(paths: list[str]) -> str:
    """Return the folder of all files: each host may have a folder of its own below it."""
    folders = [posixpath.dirname(path) for path in paths]
    try:
        return posixpath.commonpath(folders) or "."
    except ValueError:  # absolute paths and relative ones
        return folders[0] or "."


def _classes(progress: CollectiveProgress) -> list[RankClass]:
    """Yield the classes: ranks whose oldest pending call is of the same kind and was made at the same place."""
    found: dict[object, list[int]] = {}
    first: dict[object, tuple[str, CallName | None, bool, int]] = {}
    groups: dict[object, set[tuple[int, int]]] = {}
    for rank in progress.known:
        head = progress.head(rank) if rank in progress.waits else None
        last = call_facts.newest(progress, rank)
        call: CallName | None
        if head is not None:
            activity = "p2p" if head.is_transfer else "collective"
            stack = head.entry.stack
            key: object = (activity, call_facts.kind(progress, head), stack)
            groups.setdefault(key, set()).add((head.group, head.entry.number))
            alone = len(groups[key]) == 1
            call = call_facts.call(progress, head) if alone else call_facts.calls(progress, head)
        else:
            activity, stack = "compute", last[1].stack if last is not None else 0
            call = call_facts.entry(progress, *last) if last is not None else None
            key = (activity, None if last is None else (last[0], last[1].operation), stack)
        found.setdefault(key, []).append(rank)
        first[key] = (activity, call, head is None, stack)
    classes = []
    for key, ranks in found.items():
        activity, call, ended, stack = first[key]
        frames = progress.snapshot.stack(stack)
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
    return sorted(classes, key=lambda rank_class: RankSet.parse(rank_class.ranks).first)
