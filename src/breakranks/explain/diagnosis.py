"""The result of an explanation: findings, the verdict among them, and the classes of ranks."""

from __future__ import annotations

from msgspec import Struct

from breakranks.explain.actions import Action
from breakranks.explain.causes import Cause, Fact
from breakranks.explain.causes.collective_causes import CounterSpan
from breakranks.explain.causes.thread_causes import ReportedWait
from breakranks.explain.finding_parts import CallName, Doing, HeldUp, Subject, WaitPlace, Where
from breakranks.snapshot.model import Frame

CERTAIN, LIKELY, GUESS = "certain", "likely", "guess"


class Finding(Struct, frozen=True, kw_only=True):
    """One finding. ``culprits`` and ``victims`` are folded rank sets; ``subject`` is what the cause is about.

    ``grounds`` are the reasons for its confidence: keys of ``show.wording.ground_wording``. ``grounds_seconds`` is the
    time that one of them mentions. ``informational`` findings describe a healthy job; they are never the verdict.
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


class CommonReport(Struct, frozen=True, kw_only=True):
    """What introspection shows for all ranks of a class: what they wait for, if it is the same, and their loop
    counters."""

    wait: ReportedWait | None = None
    counters: tuple[CounterSpan, ...] = ()


class RankClass(Struct, frozen=True, kw_only=True):
    """Ranks that do the same thing in the same place. ``call`` is what their recorders show: the call that they are in
    or, if ``last``, the one that they were in last."""

    ranks: str
    doing: Doing
    frames: tuple[Frame, ...]
    call: CallName | None = None
    last: bool = False
    state: str = ""
    moving: bool = False
    idle: float | None = None
    where: Where | None = None
    # From introspection: what all of them wait for, and their loop counters.
    reported: CommonReport | None = None

    @property
    def activity(self) -> str:
        return self.doing.word


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The verdict, all findings and the classes of ranks.

    ``settled`` is False if more samples could change the answer; ``wait`` is how many seconds more are needed, and
    ``pending`` the finding that they would confirm. ``known_end``: the wait is sure to end then (a sleep), so waiting
    for it is useful.
    """

    verdict: Finding | None
    findings: tuple[Finding, ...]
    classes: tuple[RankClass, ...]
    settled: bool = True
    wait: float = 0.0
    pending: Finding | None = None
    known_end: bool = False
