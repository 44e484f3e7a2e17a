"""A diagnosis of some ranks of a snapshot."""

from __future__ import annotations

from msgspec.structs import replace

from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.frame_meanings import FrameTable
from breakranks.explain.verdict import explain
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Snapshot, only


def explain_ranks(snapshot: Snapshot, ranks: RankSet | None, table: FrameTable) -> tuple[Snapshot, Diagnosis]:
    """Return the part of a snapshot that is about these ranks, or all of it, and its diagnosis."""
    if snapshot.of_dumps:
        # A rank is known to be behind only from the calls of the others, so all ranks are explained.
        return snapshot, about(explain(snapshot, table), ranks)
    chosen = only(snapshot, ranks)
    return chosen, explain(chosen, table)


def about(diagnosis: Diagnosis, ranks: RankSet | None) -> Diagnosis:
    """Return the part of a diagnosis that concerns these ranks."""
    if ranks is None:
        return diagnosis

    findings = [
        finding
        for finding in diagnosis.findings
        if (RankSet.parse(finding.culprits) | RankSet.parse(finding.victims)) & ranks
    ]
    verdict = next((finding for finding in findings if not finding.informational), None)
    classes = [entry for entry in diagnosis.classes if RankSet.parse(entry.ranks) & ranks]
    return replace(diagnosis, verdict=verdict, findings=tuple(findings), classes=tuple(classes))
