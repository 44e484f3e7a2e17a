"""What explaining gives: findings, the verdict among them, and the classes of ranks."""

from __future__ import annotations

from msgspec import Struct

from breakranks.snapshot.model import Frame

CERTAIN, LIKELY, GUESS = "certain", "likely", "guess"


class Where(Struct, frozen=True):
    function: str
    file: str
    line: int


class Finding(Struct, frozen=True, kw_only=True):
    """One explained fact. ``culprits`` and ``victims`` are folded rank sets.

    ``informational`` findings describe a job that is fine; they are never the verdict.
    """

    kind: str
    culprits: str
    victims: str
    confidence: str
    summary: str
    where: Where | None = None
    evidence: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    because: str = ""
    victims_where: str = ""
    informational: bool = False


class RankClass(Struct, frozen=True, kw_only=True):
    """Ranks that do the same thing in the same place. ``label`` is one phrase for a person."""

    ranks: str
    activity: str
    label: str
    frames: tuple[Frame, ...]
    state: str = ""
    moving: bool = False
    idle: float | None = None
    where: Where | None = None
    # What all of them said of themselves: whose lock they wait for, at which step they are.
    note: str = ""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """``settled`` is False when a longer look could change the answer; ``wait`` says how much longer.
    ``known_end``: what is waited for is sure to end then (a sleep), so it is worth the wait."""

    verdict: Finding | None
    findings: tuple[Finding, ...]
    classes: tuple[RankClass, ...]
    settled: bool = True
    wait: float = 0.0
    why_not_settled: str = ""
    known_end: bool = False
