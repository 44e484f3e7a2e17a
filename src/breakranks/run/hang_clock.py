"""When a job counts as hanging: pure decisions from looks at it. ``hang_watch`` takes the looks.

The clock runs while no rank makes progress. When it has run for long enough, the job is explained in full, and that
explanation decides. The clock is set back by progress, and by an explanation without a cause.
"""

from __future__ import annotations

from typing import NamedTuple

from breakranks.explain.diagnosis import CERTAIN, Diagnosis, Finding
from breakranks.rankset import RankSet
from breakranks.run.progress_marks import Progress

# Explained, but no hang: the job moves, or a person is expected to act.
_NO_HANG = frozenset({"moving", "debugger-prompt", "clock-skew"})
# The culprits use the CPU. It is a hang only if they are in a loop that changes nothing.
SPINNING = frozenset({"straggler", "busy-loop"})
# They last until a person acts. What a rank counts while it polls for them is no progress.
_NEVER_PASSES = frozenset({"rank-stopped", "rank-exited", "stale-lock-file", "helper-dead"})
_COUNTS_ALWAYS = frozenset({"processes", "ended", "calls", "woken"})
# Explanations in a row that find no cause although nothing at all has moved, before that itself is reported.
ROUNDS_WITHOUT_CAUSE = 3
_LOOKS_AT_LEAST = 2
_SAME_CHANGE_LOOKS = 2


class Look(NamedTuple):
    """One look at the job: ``time`` by a clock that never goes back, what has moved since the look before, the
    diagnosis of all samples since then, and for how many seconds nothing has moved as the look itself shows."""

    time: float
    progress: Progress
    diagnosis: Diagnosis
    still: float = 0.0


class VerdictIdentity(NamedTuple):
    """What makes two verdicts the same hang."""

    kind: str
    culprits: str
    place: object = None


def identity(finding: Finding | None) -> VerdictIdentity | None:
    """Return the identity of a verdict, or None where there is none or it is no hang."""
    if finding is None or finding.informational or finding.kind in _NO_HANG:
        return None
    where = finding.where
    return VerdictIdentity(finding.kind, finding.culprits, None if where is None else (where.function, where.file))


class HangClock:
    """Decides when to explain the job, and whether the explanation is reported as a hang.

    >>> clock = HangClock(seconds=60)       # doctest: +SKIP
    >>> if clock.observe(look):             # doctest: +SKIP
    ...     report = clock.decide(now, diagnosis, spins=False)
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.since: float | None = None  # when the job last made progress, as far as known
        self.reported = False  # the present hang has been reported
        self._looked = 0.0
        self._looks = 0  # without progress
        self._due = 0.0  # when to explain
        self._rounds = 0
        self._busy = RankSet()  # ranks that have used a CPU since the clock began
        self._moved_little = False
        self._last: VerdictIdentity | None = None
        self._known: VerdictIdentity | None = None  # what the looks showed when the hang was reported
        self._told: VerdictIdentity | None = None  # what was reported
        self._changed = 0

    def standing(self, now: float) -> float:
        """Return for how many seconds no rank has made progress."""
        return 0.0 if self.since is None else now - self.since

    def observe(self, look: Look) -> bool:
        """Take a look into account. Return whether the job is to be explained now."""
        seen = identity(look.diagnosis.verdict)
        progressed = self._is_progress(look, seen)
        if self.since is None or progressed:
            self._restart(look)
        else:
            self._looks += 1
            self._busy |= look.progress.busy
            self._moved_little = self._moved_little or "little cpu" in look.progress.found
        prompt = look.diagnosis.verdict is not None and look.diagnosis.verdict.kind in _NO_HANG
        if prompt:
            self.set_back(look.time)
        self._looked, self._last = look.time, seen or self._last
        if self.reported:
            return self._has_changed(seen)
        return self._looks >= _LOOKS_AT_LEAST and look.time >= self._due

    def decide(self, explained: Look, *, spins: bool) -> str:
        """Return what to report of a full explanation: ``hang``, ``unknown`` (nothing moves, without a known cause), or
        "" for nothing. ``spins``: the culprits use the CPU in a loop that changes nothing."""
        diagnosis = explained.diagnosis
        found = identity(diagnosis.verdict)
        if self._is_progress(explained, found):
            self._restart(explained)
            return ""
        if found is not None and self._is_hang(found, diagnosis, spins):
            if self.reported and found == self._told:
                return ""
            self._report(found)
            return "hang"
        if self.reported:
            return ""
        if diagnosis.verdict is None and not diagnosis.settled and diagnosis.pending is not None:
            # A cause that healthy jobs show too must last for longer.
            self._due = explained.time + min(diagnosis.wait, self.seconds)
            return ""
        still = diagnosis.verdict is None and not self._busy and not self._moved_little
        if not still:
            self.set_back(explained.time)
            return ""
        self._rounds += 1
        self._due = explained.time + self.seconds
        if self._rounds < ROUNDS_WITHOUT_CAUSE:
            return ""
        self._report(None)
        return "unknown"

    def set_back(self, now: float) -> None:
        """Begin again: what was seen so far is no hang."""
        self.since, self._due = now, now + self.seconds
        self._looks = 0
        self._rounds = 0
        self._busy = RankSet()
        self._moved_little = False

    def postpone(self, seconds: float) -> None:
        """Do not count some seconds: this machine stood still."""
        if self.since is not None:
            self.since += seconds
            self._due += seconds
            self._looked += seconds

    def _is_progress(self, look: Look, seen: VerdictIdentity | None) -> bool:
        sure = look.progress.sure
        if seen is not None and seen.kind in _NEVER_PASSES:
            sure &= _COUNTS_ALWAYS
        return bool(sure) or self._names_others(seen)

    def _names_others(self, seen: VerdictIdentity | None) -> bool:
        """Whether the looks name other culprits than before: then the ones named before have moved."""
        if seen is None or self._last is None or self.reported:
            return False
        before, now = RankSet.parse(self._last.culprits), RankSet.parse(seen.culprits)
        return bool(before) and bool(now) and not before & now

    def _restart(self, look: Look) -> None:
        begin = look.time - look.still
        self.set_back(begin if self.since is None else max(begin, self._looked))
        self.reported = False
        self._told = self._known = self._last = None

    def _has_changed(self, seen: VerdictIdentity | None) -> bool:
        """Whether looks show another verdict than when the hang was reported, more than once in a row."""
        if self._known is None:
            self._known = seen
            return False
        self._changed = self._changed + 1 if seen is not None and seen != self._known else 0
        if self._changed < _SAME_CHANGE_LOOKS:
            return False
        self._known, self._changed = seen, 0
        return True

    def _is_hang(self, found: VerdictIdentity, diagnosis: Diagnosis, spins: bool) -> bool:
        verdict = diagnosis.verdict
        if found.kind in SPINNING:
            return spins
        if found.kind in _NEVER_PASSES or (verdict is not None and verdict.confidence == CERTAIN):
            return True
        return not self._busy & RankSet.parse(found.culprits)

    def _report(self, found: VerdictIdentity | None) -> None:
        self.reported, self._told, self._known, self._changed = True, found, None, 0
        self._rounds = 0


def still_seconds(diagnosis: Diagnosis) -> float:
    """Return for how many seconds no rank has moved, as two samples of one look show it."""
    if not diagnosis.classes or any(found.moving or found.idle is None for found in diagnosis.classes):
        return 0.0
    return min(found.idle for found in diagnosis.classes if found.idle is not None)


def look_seconds(seconds: float) -> float:
    """Return the time between two looks."""
    return max(0.5, min(15.0, seconds / 4))


def why_patience(seconds: float) -> float:
    """Return for how many seconds the full explanation may sample: a process group's timeout may be near."""
    return max(5.0, min(20.0, seconds / 2))
