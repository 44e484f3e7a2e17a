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
        expected: Finding | None = None  # of the diagnosis before
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
            odd = (empty == 1 and (suspected or not moving)) or _names_fewer_ranks(diagnosis.verdict, expected)
            expected = diagnosis.verdict or diagnosis.pending
            doubtful = odd and doubts < _MAX_DOUBTS
            doubts += doubtful
            left = until - time.monotonic()
            if left <= 0 or (diagnosis.settled and not doubtful):
                return snapshot, diagnosis
            progress(min(max(diagnosis.wait, interval), left), diagnosis)
            time.sleep(min(max(diagnosis.wait, interval), _MAX_STEP_SECONDS, left))
            sampler.sample(recorders=inject and sampler.sampled % _READ_RECORDERS_EVERY == 0)


def _names_fewer_ranks(verdict: Finding | None, expected: Finding | None) -> bool:
    """Whether a rank is missing from a verdict that was expected to name it."""
    if verdict is None or expected is None or verdict.kind != expected.kind:
        return False
    named = RankSet.parse(verdict.culprits) | RankSet.parse(verdict.victims)
    return not RankSet.parse(expected.culprits) <= named


def window_samples(interval: float) -> int:
    """Return how many samples, an interval apart, a live view keeps for its verdict."""
    return max(2, min(_MAX_WINDOW_SAMPLES, math.ceil(_WINDOW_SECONDS / max(interval, 0.1)) + 1))
