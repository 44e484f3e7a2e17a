"""Why injected code did not run or did not answer. Each error has a remedy."""

from __future__ import annotations

from breakranks.errors import BreakranksError
from breakranks.snapshot.model import Problem

_REMEDY = "Use `breakranks stacks --no-inject` instead: it runs no code in the process."


class InjectError(BreakranksError):
    """A process did not answer. It keeps running as before."""


class InjectRefused(InjectError):
    """Injecting code is not safe now or not possible here. The process was not changed."""

    def __init__(self, message: str, help: str = _REMEDY) -> None:
        super().__init__(message, help)

    @classmethod
    def because(cls, problem: Problem) -> InjectRefused:
        return cls(problem.what, problem.remedy)


class InjectTimeout(InjectError):
    """The process did not answer in time. The request is withdrawn: code that starts later does nothing."""

    def __init__(self, message: str, help: str = _REMEDY) -> None:
        super().__init__(message, help)


class GilHeld(InjectTimeout):
    """A thread holds the GIL in C code, so that no Python code can run in the process."""

    def __init__(self, pid: int, thread: str) -> None:
        super().__init__(
            f"thread {thread} of process {pid} holds the GIL in C code: no Python code can run in the process",
            "See its native stack: breakranks stacks --native",
        )


class InjectedCodeFailed(InjectError):
    """The injected code raised an exception. ``traceback`` is its text."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message, "This is a bug in breakranks: please report it with the text above.")
        self.traceback = traceback


class ProcessGone(InjectError):
    """The process ended before it answered."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} ended before it answered", "See which ranks are left: `breakranks ps`.")
