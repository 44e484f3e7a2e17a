"""Sample a job until the diagnosis is conclusive: two samples at least, more while another could change it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from breakranks.backend.job_backend import JobSampler
from breakranks.explain.diagnosis import Diagnosis, Finding
from breakranks.explain.frame_meanings import FrameTable
from breakranks.explain.verdict import explain
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Problem, Snapshot
from breakranks.snapshot.unread_samples import newest_is_unread

INTERVAL_SECONDS = 0.5
PATIENCE_SECONDS = 20.0  # longer than the 15 s that a rule needs to see without progress
_NOT_INSIDE = Problem(
    "numbers, sizes and members of collectives, lock owners and steps, because no code ran in the ranks (--no-inject)",
    "Omit --no-inject to see them.",
)
_MAX_STEP_SECONDS = 1.0
_WINDOW_SECONDS = 20.0
_MAX_WINDOW_SAMPLES = 30
_MAX_DOUBTS = 3  # a healthy job may wait, and work, and wait again
_READ_RECORDERS_EVERY = 3  # samples, because ranks that move are in other calls by then


def sample_until_conclusive(
    sampler: JobSampler,
    *,
    native: bool = True,
    interval: float = INTERVAL_SECONDS,
    patience: float = PATIENCE_SECONDS,
    table: FrameTable | None = None,
    inject: bool = True,
    progress: Callable[[float, Diagnosis], None] = lambda seconds, diagnosis: None,
) -> tuple[Snapshot, Diagnosis]:
    """Return a snapshot and its diagnosis. ``progress`` is called before each wait for another sample."""
    with sampler:
        sampler.sample()
        time.sleep(interval)
        sampler.sample(native=native, recorders=inject)
        until = time.monotonic() + patience
        extended = suspected = False
        empty = doubts = 0  # diagnoses in a row that found nothing, and how often a diagnosis was confirmed
        named: dict[str, RankSet] = {}  # by kind of finding, the culprits of every diagnosis so far
        while True:
            snapshot = sampler.snapshot()
            if not inject:
                snapshot = replace(snapshot, problems=(*snapshot.problems, _NOT_INSIDE))
            diagnosis = explain(snapshot, table)
            if diagnosis.known_end and not extended:
                extended = True
                until = max(until, time.monotonic() + diagnosis.wait + 2 * interval)
            suspected = suspected or diagnosis.pending is not None
            empty = empty + 1 if diagnosis.settled and diagnosis.verdict is None else 0
            # One odd sample, of a rank between two sleeps, may hide what the others show.
            moving = any(rank_class.moving for rank_class in diagnosis.classes)
            odd = (empty == 1 and (suspected or not moving)) or _names_fewer_ranks(diagnosis.verdict, named)
            odd = odd or any(newest_is_unread(rank.process) for rank in snapshot.ranks)
            _add_culprits(named, diagnosis)
            doubtful = odd and diagnosis.settled and doubts < _MAX_DOUBTS
            doubts += doubtful
            left = until - time.monotonic()
            if left <= 0 or (diagnosis.settled and not doubtful):
                return snapshot, diagnosis
            progress(min(max(diagnosis.wait, interval), left), diagnosis)
            time.sleep(min(max(diagnosis.wait, interval), _MAX_STEP_SECONDS, left))
            sampler.sample(recorders=inject and (doubtful or sampler.sampled % _READ_RECORDERS_EVERY == 0))


def _names_fewer_ranks(verdict: Finding | None, named: dict[str, RankSet]) -> bool:
    """Whether a rank that was named for the same kind of cause is missing from a verdict."""
    if verdict is None or verdict.kind not in named:
        return False
    return not named[verdict.kind] <= RankSet.parse(verdict.culprits) | RankSet.parse(verdict.victims)


def _add_culprits(named: dict[str, RankSet], diagnosis: Diagnosis) -> None:
    """Add the culprits of a pending finding. Those of a verdict count alone: it is confirmed once."""
    if diagnosis.verdict is not None:
        named[diagnosis.verdict.kind] = RankSet.parse(diagnosis.verdict.culprits)
    elif diagnosis.pending is not None:
        kind, culprits = diagnosis.pending.kind, RankSet.parse(diagnosis.pending.culprits)
        named[kind] = named.get(kind, RankSet()) | culprits


def window_samples(interval: float) -> int:
    """Return how many samples, an interval apart, a live view keeps for its verdict."""
    return max(2, min(_MAX_WINDOW_SAMPLES, math.ceil(_WINDOW_SECONDS / max(interval, 0.1)) + 1))
