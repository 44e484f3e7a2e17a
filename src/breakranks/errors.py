"""The errors that a user can see. Each tells what happened and what to do.

:mod:`breakranks.cli.main` catches them, prints them and exits with status 2.
"""

from __future__ import annotations

# For sudo, whose own PATH does not contain a virtual environment.
THIS_BREAKRANKS = '"$(command -v breakranks)"'


class BreakranksError(Exception):
    """The base class. ``message`` tells what happened, ``help`` is the remedy."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class UsageError(BreakranksError):
    """The command line is wrong: an invalid target, or a rank that the job does not have."""


class NoJobError(BreakranksError):
    """The target has no such job."""


class ManyJobsError(BreakranksError):
    """The target has several jobs, and the command needs one."""


class ProcessError(BreakranksError):
    """A process cannot be inspected: it has ended, is not Python, or belongs to another user."""


class SnapshotError(BreakranksError):
    """A snapshot file cannot be read: it is truncated, of another format, or from a newer version."""
