"""A process that does not run, waits for input, holds the GIL, or works."""

from __future__ import annotations

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.finding_parts import Where


class Stopped(Cause, frozen=True, kw_only=True):
    """``by``: ``signal``, ``debugger``, or empty if the ranks differ."""

    by: str = ""


class Ended(Cause, frozen=True, kw_only=True):
    zombie: bool


class AtPrompt(Cause, frozen=True, kw_only=True):
    op: str
    where: Where | None


class AtBreakpoint(Cause, frozen=True, kw_only=True):
    """At a breakpoint of breakranks. ``held``: another rank is to be at the prompt."""

    held: bool
    where: Where | None


class GilHeldInC(Cause, frozen=True, kw_only=True):
    function: str
    where: Where | None


class Spinning(Cause, frozen=True, kw_only=True):
    where: Where | None


class Computing(Cause, frozen=True, kw_only=True):
    context: str
    where: Where | None


class KernelState(Fact, frozen=True, kw_only=True):
    pid: int
    state: str


class OomKilled(Fact, frozen=True, kw_only=True):
    """A line of the kernel's log."""

    line: str


class InsidePrompt(Fact, frozen=True, kw_only=True):
    op: str


class InBreakpoint(Fact, frozen=True, kw_only=True):
    pass


class StandardInput(Fact, frozen=True, kw_only=True):
    path: str


class GilHolder(Fact, frozen=True, kw_only=True):
    """``call``: the system call that it is blocked in; empty: it computes."""

    thread: str
    call: str


class CFrames(Fact, frozen=True, kw_only=True):
    functions: tuple[str, ...]


class GilWaiters(Fact, frozen=True, kw_only=True):
    threads: int


class NeverLeaves(Fact, frozen=True, kw_only=True):
    """``share``: of a CPU, at most 1."""

    share: float
    function: str


class SeenAtLines(Fact, frozen=True, kw_only=True):
    looks: int
    lines: tuple[int, ...]


class MovesInCode(Fact, frozen=True, kw_only=True):
    share: float
    lines: int
    looks: int
