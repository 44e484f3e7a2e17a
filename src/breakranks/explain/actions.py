"""What to do next, as data: a breakranks command, a shell command, or advice."""

from __future__ import annotations

from msgspec import Struct


class Action(Struct, frozen=True, kw_only=True, tag=True):
    """One thing to do. ``host``: where to do it; empty if that is obvious. ``comment``: what it is for."""

    host: str = ""
    comment: str = ""


class RunBreakranks(Action, frozen=True, kw_only=True):
    """A breakranks command about a process (``pid``), a file or folder (``path``), or the job. ``target`` names the job
    in shell words; it is empty for a job on this machine."""

    command: str
    args: tuple[str, ...] = ()
    pid: int = 0
    path: str = ""
    target: str = ""


class RunShell(Action, frozen=True, kw_only=True):
    """A shell command."""

    script: str


class Advise(Action, frozen=True, kw_only=True):
    """Something that only a person can do. ``what`` is a key of ``show.wording.action_wording.ADVICE``; the other
    fields fill in its text."""

    what: str
    ranks: str = ""
    hosts: tuple[str, ...] = ()
    path: str = ""
    number: int = 0


class FollowRemedy(Action, frozen=True, kw_only=True):
    """The remedy of an error, which says in its own words what to do."""

    remedy: str


def stacks_of(pid: int, *args: str) -> RunBreakranks:
    """Return the command that shows the stacks of one process."""
    return RunBreakranks(command="stacks", pid=pid, args=args)


def attach_to(ranks: object) -> RunBreakranks:
    return RunBreakranks(command="attach", args=("--rank", str(ranks)))
