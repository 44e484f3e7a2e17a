"""What a rule says of one rank that waits for no other rank."""

from __future__ import annotations

from typing import NamedTuple

from breakranks.explain.actions import Action
from breakranks.explain.causes import Cause, Fact
from breakranks.explain.diagnosis import LIKELY
from breakranks.snapshot.model import Frame

# For how many seconds ranks must have stood before a cause that healthy jobs show too is called a hang.
AT_ONCE_SECONDS = 0.0
# Enough where nothing in the job runs any more and only the job itself could change that.
MOMENT_SECONDS = 0.4
PATIENCE_SECONDS = 5.0
SLOW_SECONDS = 10.0
# A sleep longer than this is no pause between two steps.
LONG_SLEEP_SECONDS = 20.0
# For a rank that works while others wait: only a wait this long is worth a word.
WORKING_SECONDS = 15.0
# For bytes that visibly move.
MOVING_SECONDS = 30.0


class RankCause(NamedTuple):
    """Why a rank is where it is.

    ``needs`` is how long the job must have stood for this to count: at once for what never passes by itself, longer for
    what a healthy job does too. ``grounds`` say why it is as sure as it is.
    """

    kind: str
    cause: Cause
    evidence: tuple[Fact, ...] = ()
    next: tuple[Action, ...] = ()
    confidence: str = LIKELY
    needs: float = PATIENCE_SECONDS
    where: Frame | None = None
    grounds: tuple[str, ...] = ()
    # Whether it counts when nobody waits: an idle server is in order, unless the others wait for it.
    alone: bool = True
    # How many looks it takes: a loop is told from work by the lines at which it is seen.
    samples: int = 2
