"""What finding jobs gives: ranks with their processes, and those that are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from breakranks.snapshot.model import Job, Missing, Problem

# The threads of a process as `py-spy dump --json --locals` gives them; None or empty: cannot be read.
StackOf = Callable[[int], "Sequence[Mapping[str, Any]] | None"]


class FoundRank(NamedTuple):
    rank: int
    pid: int
    local_rank: int = -1


class FoundJob(NamedTuple):
    job: Job
    ranks: tuple[FoundRank, ...]
    missing: tuple[Missing, ...] = ()


class LocalJobs(NamedTuple):
    """What is on this machine. Jobs: oldest first. Problems: what could not be seen, and the remedy."""

    jobs: tuple[FoundJob, ...]
    problems: tuple[Problem, ...] = ()
