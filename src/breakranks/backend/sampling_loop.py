"""Sample a job until the diagnosis is conclusive: two samples at least, more while another could change it."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from breakranks.backend.job_backend import JobSampler
from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.frame_meanings import FrameTable
from breakranks.explain.verdict import explain
from breakranks.snapshot.model import Problem, Snapshot

INTERVAL_SECONDS = 0.5
PATIENCE_SECONDS = 15.0
_NOT_INSIDE = Problem(
    "the ranks were not asked themselves (--no-inject): numbers, sizes and members of collectives, owners of locks and "
    "steps are not known",
    "Leave --no-inject out to have them.",
)
_MAX_STEP_SECONDS = 1.0
_READ_RECORDERS_EVERY = 3  # samples: ranks that have moved meanwhile are in other calls


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
    """A snapshot and what it means. ``progress`` is told for how long another look will take, and what is known."""
    with sampler:
        sampler.sample()
        time.sleep(interval)
        sampler.sample(native=native, recorders=inject)
        until = time.monotonic() + patience
        extended = False
        while True:
            snapshot = sampler.snapshot()
            if not inject:
                snapshot = replace(snapshot, problems=(*snapshot.problems, _NOT_INSIDE))
            diagnosis = explain(snapshot, table)
            if diagnosis.known_end and not extended:
                extended = True
                until = max(until, time.monotonic() + diagnosis.wait + 2 * interval)
            left = until - time.monotonic()
            if diagnosis.settled or left <= 0:
                return snapshot, diagnosis
            progress(min(diagnosis.wait, left), diagnosis)
            time.sleep(min(max(diagnosis.wait, interval), _MAX_STEP_SECONDS, left))
            sampler.sample(recorders=inject and sampler.sampled % _READ_RECORDERS_EVERY == 0)
