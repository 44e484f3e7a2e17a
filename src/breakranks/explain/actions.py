"""What to do next, as data: a command of breakranks, a line for a shell, or advice to a person."""

from __future__ import annotations

from msgspec import Struct


class Action(Struct, frozen=True, kw_only=True, tag=True):
    """One thing to do. ``host``: where; empty where that need not be said. ``comment`` says what for."""

    host: str = ""
    comment: str = ""


class RunBreakranks(Action, frozen=True, kw_only=True):
    """A command of breakranks: about a process (``pid``), a file or folder (``path``), or the job, which ``target``
    reaches again: words for a shell, empty for a job of this machine."""

    command: str
    args: tuple[str, ...] = ()
    pid: int = 0
    path: str = ""
    target: str = ""


class RunShell(Action, frozen=True, kw_only=True):
    """A line for a shell."""

    script: str


class Advise(Action, frozen=True, kw_only=True):
    """What only a person can do. ``what`` is a key of ``show.wording.action_wording``; the rest is what it is about."""

    what: str
    ranks: str = ""
    hosts: tuple[str, ...] = ()
    path: str = ""
    number: int = 0


def stacks_of(pid: int, *args: str) -> RunBreakranks:
    """The stacks of one process."""
    return RunBreakranks(command="stacks", pid=pid, args=args)


def attach_to(ranks: object) -> RunBreakranks:
    return RunBreakranks(command="attach", args=("--rank", str(ranks)))
