"""Why a process could not be asked. Each says what was found and what to do."""

from __future__ import annotations

from breakranks.errors import BreakranksError
from breakranks.snapshot.model import Problem

_LOOK = "Look from outside instead: `breakranks stacks` needs nothing to run in the process."


class InjectError(BreakranksError):
    """A process did not answer. It runs on as before."""


class InjectRefused(InjectError):
    """It would not be safe now, or is not possible here; the process was not changed."""

    def __init__(self, message: str, help: str = _LOOK) -> None:
        super().__init__(message, help)

    @classmethod
    def because(cls, problem: Problem) -> InjectRefused:
        return cls(problem.what, problem.remedy)


class InjectTimeout(InjectError):
    """It did not answer in time. What was asked is withdrawn: should it run at last, it does nothing."""

    def __init__(self, message: str, help: str = _LOOK) -> None:
        super().__init__(message, help)


class GilHeld(InjectTimeout):
    """A thread keeps the GIL in C: no Python can run there, whatever is asked."""

    def __init__(self, pid: int, thread: str) -> None:
        super().__init__(
            f"thread {thread} of process {pid} holds the GIL in C: no Python can run there",
            "See its native stack: breakranks stacks --native",
        )


class InjectedCodeFailed(InjectError):
    """Our code ran in the process and raised. ``traceback`` is its text."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message, "This is a fault of breakranks: please report it with the text above.")
        self.traceback = traceback


class ProcessGone(InjectError):
    """The process ended before it answered."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} ended before it answered", "Look at the job again: `breakranks ps`.")
