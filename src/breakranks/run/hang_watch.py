"""Watching a running job for a hang: looks at it, from time to time, for as long as it lives.

A look is two samples, half a second apart, with what the ranks report of their calls and loops. Between looks the job
is not touched. ``hang_clock`` decides; when its time is up, the job is explained as ``why`` does it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from breakranks.backend.job_backend import JobSampler
from breakranks.backend.sampling_loop import INTERVAL_SECONDS, sample_until_conclusive
from breakranks.errors import BreakranksError, NoJobError, ProcessError
from breakranks.explain.diagnosis import Diagnosis, Finding
from breakranks.explain.frame_meanings import FrameTable
from breakranks.explain.verdict import explain
from breakranks.log import Log
from breakranks.machine_suspension import stalled
from breakranks.rankset import RankSet
from breakranks.run.hang_clock import SPINNING, HangClock, Look, look_seconds, still_seconds, why_patience
from breakranks.run.progress_marks import ProgressMonitor, marks_of, may_spin, samples_in_interpreter
from breakranks.run.watched_job import ProcessLife, WatchedJob, has_ended, is_outdated
from breakranks.snapshot.model import Snapshot, last_samples

_log = Log("run")
_POLL_SECONDS = 0.2  # between two checks whether the process of ``below`` has ended
_FIND_SECONDS = 1.0  # between two searches for a job that has not started
_FIND_HOSTS_SECONDS = 10.0
# Between two connections to the same hosts, if the first has changed nothing.
_AGAIN_SECONDS, _MAX_AGAIN_SECONDS = 30.0, 300.0
_NO_JOB_TIMES = 3  # in a row: then a job that was there has ended
_LOOK_SAMPLES = 2
# Samples of C frames, before a loop is called a hang. Those of a process that runs cannot always be read.
_NATIVE_SAMPLES, _LEAST_NATIVE_SAMPLES = 8, 3
_NATIVE_APART_SECONDS = 0.1
_OVER_PATIENCE_SECONDS = 5.0


class HangFound(NamedTuple):
    """No rank has made progress for ``seconds``. ``known``: the diagnosis has a verdict. ``since`` is wall-clock
    time."""

    snapshot: Snapshot
    diagnosis: Diagnosis
    seconds: float
    since: float
    known: bool = True


class ProgressResumed(NamedTuple):
    """The job moves again, after a hang that was reported."""


class LookTaken(NamedTuple):
    """One look, for a status line. ``standing`` is for how many seconds no rank has made progress."""

    snapshot: Snapshot
    diagnosis: Diagnosis
    standing: float


class JobFound(NamedTuple):
    """The job was found, for the first time or after a restart of its ranks."""

    key: str
    ranks: int


class JobNotSeen(NamedTuple):
    """The job cannot be looked at now. The watch goes on."""

    error: BreakranksError


class WatchEnded(NamedTuple):
    """The job has ended."""


WatchEvent = HangFound | ProgressResumed | LookTaken | JobFound | JobNotSeen | WatchEnded


class HangWatch:
    """Watches one job. ``wait``: for how many seconds to wait until it appears.

    >>> watch = HangWatch(WatchedJob(LocalBackend), seconds=300)    # doctest: +SKIP
    >>> for event in watch.events():                                # doctest: +SKIP
    ...     if isinstance(event, HangFound): ...
    """

    def __init__(
        self,
        job: WatchedJob,
        *,
        seconds: float,
        wait: float = 0.0,
        below: int = 0,
        inject: bool = True,
        native: bool = True,
        table: FrameTable | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.job = job
        self._seconds = seconds
        self._wait = wait
        self._life = ProcessLife(below) if below else None
        self._inject = inject
        self._native = native
        self._table = table
        self._now = clock
        self._sleep = sleep
        self._clock = HangClock(seconds)
        self._monitor = ProgressMonitor()
        self._ranks: frozenset[tuple[int, int]] = frozenset()  # as found: rank and pid
        self._found_at = 0.0
        self._again_seconds = _AGAIN_SECONDS

    def events(self) -> Generator[WatchEvent, None, None]:
        """Watch the job until it has ended. Raise a BreakranksError if there is no job at the beginning."""
        try:
            if not (yield from self._first()):
                yield WatchEnded()
                return
            interval = look_seconds(self._seconds)
            while True:
                began = self._now()
                snapshot = None
                try:
                    snapshot = yield from self._round()
                except BreakranksError as error:
                    _log.info("no look", why=error.message)
                    yield JobNotSeen(error)
                if (snapshot is None or is_outdated(snapshot)) and not (yield from self._again(snapshot)):
                    yield WatchEnded()
                    return
                if not self._pause(interval - (self._now() - began)):
                    yield WatchEnded()
                    return
        finally:
            self.job.close()

    # ---- finding the job

    def _first(self) -> Generator[WatchEvent, None, bool]:
        """Wait until there is a job; return whether there is one."""
        until = self._now() + self._wait
        while True:
            try:
                self._find()
                yield JobFound(self.job.name, len(self._ranks))
                return True
            except NoJobError as error:
                if self._life is None and self._now() >= until:
                    raise
                yield JobNotSeen(error)
            if not self._pause(_FIND_SECONDS if self.job.is_local else _FIND_HOSTS_SECONDS):
                return False

    def _find(self) -> bool:
        """Find the job; return whether it has other processes than before."""
        job = self.job.find()
        ranks = frozenset((rank.rank, rank.pid) for rank in job.ranks)
        other = ranks != self._ranks
        self._again_seconds = _AGAIN_SECONDS if other else min(2 * self._again_seconds, _MAX_AGAIN_SECONDS)
        self._ranks = ranks
        self._found_at = self._now()
        return other

    def _again(self, snapshot: Snapshot | None) -> Generator[WatchEvent, None, bool]:
        """Find the job again; return False if it has ended."""
        ended = snapshot is not None and has_ended(snapshot)
        if not ended and not self.job.is_local and self._now() - self._found_at < self._again_seconds:
            return True
        for attempt in range(_NO_JOB_TIMES):
            try:
                if self._find():
                    yield JobFound(self.job.name, len(self._ranks))
                return True
            except (NoJobError, ProcessError) as error:
                _log.info("the job was not found again", why=error.message)
                if isinstance(error, ProcessError) and not ended:
                    return True  # some of the processes of the target have ended, others are still there
                if self._life is None and (ended or attempt + 1 == _NO_JOB_TIMES):
                    return False
            except BreakranksError as error:
                if ended:
                    return False
                self._found_at = self._now()
                yield JobNotSeen(error)
                return True
            if not self._pause(_FIND_SECONDS):
                return False
        return True

    # ---- looking

    def _round(self) -> Generator[WatchEvent, None, Snapshot]:
        """Take one look, and explain the job if it is time; return the newest snapshot."""
        snapshot, look = self._look()
        reported = self._clock.reported
        due = self._clock.observe(look)
        yield LookTaken(snapshot, look.diagnosis, self._clock.standing(look.time))
        if due and not has_ended(snapshot):
            snapshot, explained, spins = self._explained()
            standing = self._clock.standing(explained.time)
            decision = self._clock.decide(explained, spins=spins)
            _log.info("explained", decision=decision, seconds=round(standing), spins=spins)
            if decision and not has_ended(snapshot):
                yield HangFound(snapshot, explained.diagnosis, standing, time.time() - standing, decision == "hang")
        if reported and not self._clock.reported:
            yield ProgressResumed()
        if look.progress.sure or self._clock.since == look.time:
            self.job.drop_sampler()  # the next samples are those of another wait
        return snapshot

    def _look(self) -> tuple[Snapshot, Look]:
        sampler = self.job.sampler()
        new = sampler.sampled == 0
        sampler.sample()
        self._sleep(INTERVAL_SECONDS)
        sampler.sample(recorders=self._inject)
        at = self._now()
        snapshot = sampler.snapshot()
        whole = explain(snapshot, self._table)
        pair = whole if new else explain(last_samples(snapshot, _LOOK_SAMPLES), self._table)
        return snapshot, self._compared(snapshot, at, whole, pair, _LOOK_SAMPLES)

    def _explained(self) -> tuple[Snapshot, Look, bool]:
        """Explain the job as ``why`` does, with the samples of all looks since it last moved. Return also whether the
        culprits spin in a loop that changes nothing."""
        sampler = _BoundedSampler(self.job.sampler(), self._now, why_patience(self._seconds) + _OVER_PATIENCE_SECONDS)
        try:
            snapshot, diagnosis = sample_until_conclusive(
                sampler, native=self._native, patience=why_patience(self._seconds), table=self._table,
                inject=self._inject,
            )  # fmt: skip
        except _OverPatienceError:
            snapshot = sampler.snapshot()
            diagnosis = explain(snapshot, self._table)
        look = self._compared(snapshot, self._now(), diagnosis, diagnosis, sampler.taken)
        return snapshot, look, self._spins(snapshot, diagnosis.verdict)

    def _spins(self, snapshot: Snapshot, verdict: Finding | None) -> bool:
        """Whether culprits that use the CPU loop without a change. One sample of C frames may show a rank that computes
        between two calls of C, so more are taken."""
        if verdict is None or verdict.kind not in SPINNING:
            return False
        culprits = RankSet.parse(verdict.culprits)
        if not self._native or (verdict.kind == "straggler" and not may_spin(snapshot, culprits)):
            return False
        before = samples_in_interpreter(snapshot, culprits)
        for _ in range(_NATIVE_SAMPLES):
            self._sleep(_NATIVE_APART_SECONDS)
            self.job.sampler().sample(native=True)
            number = samples_in_interpreter(self.job.sampler().snapshot(), culprits)
            if number < before:
                return False
            before = number
        return before >= _LEAST_NATIVE_SAMPLES

    def _compared(self, snapshot: Snapshot, at: float, whole: Diagnosis, pair: Diagnosis, samples: int) -> Look:
        """Return a look with what has moved since the look before."""
        since_last = explain(last_samples(snapshot, samples + 1), self._table)
        progress = self._monitor.moved(marks_of(snapshot, since_last, samples))
        verdict = whole.verdict.kind if whole.verdict is not None else ""
        _log.info("look", verdict=verdict, moved=",".join(f"{what}:{ranks}" for what, ranks in progress.found.items()))
        return Look(at, progress, whole, still_seconds(pair))

    def _pause(self, seconds: float) -> bool:
        """Wait; return False if the process of ``below`` has ended."""
        until = self._now() + max(seconds, _POLL_SECONDS)
        while (left := until - self._now()) > 0:
            if self._life is not None and self._life.is_over():
                return False
            span = min(left, _POLL_SECONDS)
            before = self._now()
            self._sleep(span)
            self._clock.postpone(stalled(self._now() - before, span))
        return self._life is None or not self._life.is_over()


class _OverPatienceError(Exception):
    """The end of a sleep was waited for, for too long."""


class _BoundedSampler:
    """A sampler that is in use already and stays so, for a limited time."""

    def __init__(self, sampler: JobSampler, clock: Callable[[], float], seconds: float) -> None:
        self._sampler = sampler
        self._now = clock
        self._until = clock() + seconds
        self.taken = 0

    def __enter__(self) -> _BoundedSampler:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    @property
    def sampled(self) -> int:
        return self._sampler.sampled

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        if self._now() > self._until:
            raise _OverPatienceError
        self._sampler.sample(native=native, recorders=recorders, visit=visit, samples=samples)
        self.taken += samples

    def snapshot(self, keep: int | None = None) -> Snapshot:
        return self._sampler.snapshot(keep)
