"""Every error that a user can meet. One base class; each says what happened and what to do.

They are caught once, in :mod:`breakranks.cli.main`, which prints them and exits with status 2.
"""

from __future__ import annotations


class BreakranksError(Exception):
    """Something could not be looked at. ``help`` is the remedy: what to try next."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class UsageError(BreakranksError):
    """What the user asked for does not make sense (a bad target, a rank that is not there)."""


class NoJobError(BreakranksError):
    """No job was found where the user pointed."""


class ManyJobsError(BreakranksError):
    """More than one job is there and the command is about one."""


class ProcessError(BreakranksError):
    """A process cannot be looked at: it is gone, not Python, or not ours."""


class SnapshotError(BreakranksError):
    """A snapshot file cannot be read: truncated, foreign, or written by a newer version."""
