"""What a rule returns for a rank that waits for no other rank."""

from __future__ import annotations

from typing import NamedTuple

from breakranks.explain.actions import Action
from breakranks.explain.causes import Cause, Fact
from breakranks.explain.diagnosis import LIKELY
from breakranks.explain.rank_views import JobSamples
from breakranks.snapshot.model import Frame, Process

# For how many seconds ranks must not have moved before a cause that healthy jobs show too counts as a hang.
AT_ONCE_SECONDS = 0.0
# Enough if nothing in the job runs and only the job itself could change that.
MOMENT_SECONDS = 0.4
PATIENCE_SECONDS = 5.0
SLOW_SECONDS = 10.0
# A longer sleep is not a pause between two steps.
LONG_SLEEP_SECONDS = 20.0
# For a rank that works while others wait: shorter waits are not reported.
WORKING_SECONDS = 15.0
# For I/O that is moving bytes.
MOVING_SECONDS = 30.0

# The last sample of a process is older than the newest one of the job by more if no other comes.
_OLD_SECONDS = 5.0
_LINES_CHANGE = frozenset({"busy-loop", "straggler"})


class RankCause(NamedTuple):
    """Why a rank is where it is.

    ``needs``: for how many seconds the job must not have moved for this to count. It is 0 for what never ends by
    itself, and longer for what a healthy job shows too. ``grounds`` are the reasons for its confidence.
    """

    kind: str
    cause: Cause
    evidence: tuple[Fact, ...] = ()
    next: tuple[Action, ...] = ()
    confidence: str = LIKELY
    needs: float = PATIENCE_SECONDS
    where: Frame | None = None
    grounds: tuple[str, ...] = ()
    # Whether it counts if no rank waits: an idle server is normal unless other ranks wait for it.
    alone: bool = True
    # How many samples it takes: a loop is distinguished from work by the lines at which it is seen.
    samples: int = 2
    # What it is about, if that is not what the thread is blocked on: the path of a lock file.
    about: str = ""

    def seen_twice(self, process: Process, states: str, sampled: JobSamples) -> RankCause:
        """Return the cause so that it takes one more sample if only the last one shows a process in these states: a
        helper may have ended and its parent be about to collect it. A process of which no sample comes any more keeps
        its state."""
        samples = process.samples
        twice = len(samples) > 1 and samples[-2].state in states
        if not samples or twice or samples[-1].time < sampled.newest - _OLD_SECONDS:
            return self
        return self._replace(samples=sampled.number + 1)

    @property
    def place(self) -> object:
        """What is equal for ranks with the same cause. Of ranks that poll or spin each is seen at another line."""
        if self.where is None or not (self.about or self.kind in _LINES_CHANGE):
            return self.where
        return self.where.function, self.where.file
