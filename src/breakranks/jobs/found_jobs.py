"""The jobs that were found: ranks with their processes, and the ranks that are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from breakranks.snapshot.model import Job, Missing, Problem

# The threads of a process as `py-spy dump --json --locals` prints them; None or empty if they cannot be read.
StackOf = Callable[[int], "Sequence[Mapping[str, Any]] | None"]


class FoundRank(NamedTuple):
    rank: int
    pid: int
    local_rank: int = -1


class FoundJob(NamedTuple):
    """A job and its ranks. ``of_pids``: no launcher made it, but a user who named processes."""

    job: Job
    ranks: tuple[FoundRank, ...]
    missing: tuple[Missing, ...] = ()
    of_pids: bool = False


class LocalJobs(NamedTuple):
    """The jobs of this machine, oldest first, and the problems that hide processes."""

    jobs: tuple[FoundJob, ...]
    problems: tuple[Problem, ...] = ()
