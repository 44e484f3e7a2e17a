"""What explaining gives: findings, the verdict among them, and the classes of ranks."""

from __future__ import annotations

from msgspec import Struct

from breakranks.explain.actions import Action
from breakranks.explain.causes import Cause, Fact
from breakranks.explain.causes.collective_causes import CounterSpan
from breakranks.explain.causes.thread_causes import SaidWait
from breakranks.explain.values import CallName, Doing, HeldUp, Subject, WaitPlace, Where
from breakranks.snapshot.model import Frame

CERTAIN, LIKELY, GUESS = "certain", "likely", "guess"


class Finding(Struct, frozen=True, kw_only=True):
    """One explained fact. ``culprits`` and ``victims`` are folded rank sets; ``subject`` is who the cause is about.

    ``grounds`` say why it is as sure as it is: keys of ``show.wording.ground_wording``. ``grounds_seconds`` is the time
    that one of them names. ``informational`` findings describe a job that is fine; they are never the verdict.
    """

    kind: str
    culprits: str
    victims: str
    confidence: str
    cause: Cause
    subject: Subject
    held_up: HeldUp | None = None
    victims_at: WaitPlace | None = None
    where: Where | None = None
    evidence: tuple[Fact, ...] = ()
    next: tuple[Action, ...] = ()
    grounds: tuple[str, ...] = ()
    grounds_seconds: float = 0.0
    informational: bool = False


class SaidTogether(Struct, frozen=True, kw_only=True):
    """What ranks of one class have said of themselves: what they wait for, if that is the same, and how far their loops
    have come."""

    wait: SaidWait | None = None
    counters: tuple[CounterSpan, ...] = ()


class RankClass(Struct, frozen=True, kw_only=True):
    """Ranks that do the same thing in the same place. ``calls``: by their recorders, what they are in, or, if ``last``,
    what they were in last."""

    ranks: str
    doing: Doing
    frames: tuple[Frame, ...]
    call: CallName | None = None
    last: bool = False
    state: str = ""
    moving: bool = False
    idle: float | None = None
    where: Where | None = None
    # What all of them said of themselves: whose lock they wait for, at which step they are.
    said: SaidTogether | None = None

    @property
    def activity(self) -> str:
        return self.doing.word


class Diagnosis(Struct, frozen=True, kw_only=True):
    """``settled`` is False when a longer look could change the answer; ``wait`` says how much longer, and ``pending``
    what may come of it. ``known_end``: what is waited for is sure to end then (a sleep), so it is worth the wait."""

    verdict: Finding | None
    findings: tuple[Finding, ...]
    classes: tuple[RankClass, ...]
    settled: bool = True
    wait: float = 0.0
    pending: Finding | None = None
    known_end: bool = False
