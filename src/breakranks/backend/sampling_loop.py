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
_MAX_CONFIRMATIONS = 3  # a healthy job may wait, and work, and wait again
_MAX_EMPTY = 2  # the sample after an odd one shows a move, too
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
        extended = False
        confirmation = _Confirmation()
        while True:
            snapshot = sampler.snapshot()
            if not inject:
                snapshot = replace(snapshot, problems=(*snapshot.problems, _NOT_INSIDE))
            diagnosis = explain(snapshot, table)
            if diagnosis.known_end and not extended:
                extended = True
                until = max(until, time.monotonic() + diagnosis.wait + 2 * interval)
            confirming = confirmation.is_needed(snapshot, diagnosis)
            left = until - time.monotonic()
            if left <= 0 or (diagnosis.settled and not confirming):
                return snapshot, diagnosis
            progress(min(max(diagnosis.wait, interval), left), diagnosis)
            time.sleep(min(max(diagnosis.wait, interval), _MAX_STEP_SECONDS, left))
            again = native and confirming and _stack_is_late(snapshot)
            native = native and not again
            sampler.sample(
                native=again,
                recorders=inject and (confirming or sampler.sampled % _READ_RECORDERS_EVERY == 0),
            )


class _Confirmation:
    """Decides whether a settled diagnosis takes one more sample, which asks the ranks again.

    One odd sample, of a rank between two sleeps or one that could not be read, may hide what the others show.
    """

    def __init__(self) -> None:
        self._confirmed = 0
        self._empty = 0  # diagnoses in a row that found nothing
        self._suspected = False
        self._named: dict[str, RankSet] = {}  # by kind of finding, the culprits of every diagnosis so far

    def is_needed(self, snapshot: Snapshot, diagnosis: Diagnosis) -> bool:
        self._suspected = self._suspected or diagnosis.pending is not None
        self._empty = self._empty + 1 if diagnosis.settled and diagnosis.verdict is None else 0
        odd = self._is_odd(snapshot, diagnosis)
        self._add_culprits(diagnosis)
        if not (odd and diagnosis.settled) or self._confirmed == _MAX_CONFIRMATIONS:
            return False
        self._confirmed += 1
        return True

    def _is_odd(self, snapshot: Snapshot, diagnosis: Diagnosis) -> bool:
        if self._empty and self._empty <= (_MAX_EMPTY if self._suspected else 1):
            moving = any(rank_class.moving for rank_class in diagnosis.classes)
            if self._suspected or not moving:
                return True
        if self._names_fewer_ranks(diagnosis.verdict) or any(newest_is_unread(rank.process) for rank in snapshot.ranks):
            return True
        late = _stack_is_late(snapshot) or any(problem.late for problem in snapshot.problems)
        return late and not self._confirmed

    def _names_fewer_ranks(self, verdict: Finding | None) -> bool:
        """Whether a rank that was named for the same kind of cause is missing from a verdict."""
        if verdict is None or verdict.kind not in self._named:
            return False
        return not self._named[verdict.kind] <= RankSet.parse(verdict.culprits) | RankSet.parse(verdict.victims)

    def _add_culprits(self, diagnosis: Diagnosis) -> None:
        """Add the culprits of a pending finding. Those of a verdict count alone: it is confirmed once."""
        if diagnosis.verdict is not None:
            self._named[diagnosis.verdict.kind] = RankSet.parse(diagnosis.verdict.culprits)
        elif diagnosis.pending is not None:
            kind, culprits = diagnosis.pending.kind, RankSet.parse(diagnosis.pending.culprits)
            self._named[kind] = self._named.get(kind, RankSet()) | culprits


def _stack_is_late(snapshot: Snapshot) -> bool:
    """Whether the stack of a rank, or its C frames, could not be read in time."""
    return any(problem.late for rank in snapshot.ranks for problem in rank.process.problems)


def window_samples(interval: float) -> int:
    """Return how many samples, an interval apart, a live view keeps for its verdict."""
    return max(2, min(_MAX_WINDOW_SAMPLES, math.ceil(_WINDOW_SECONDS / max(interval, 0.1)) + 1))
