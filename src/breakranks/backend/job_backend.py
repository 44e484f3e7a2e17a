"""Where jobs run: this machine (``LocalBackend``) or the hosts of a target (``hosts.HostsBackend``).

Commands know only these protocols. A host's agent serves a ``LocalBackend``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from breakranks.backend.rank_connection import AgentPlace, FoundAgent
from breakranks.jobs.found_jobs import FoundRank
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Job, Missing, Problem, Snapshot

if TYPE_CHECKING:
    # They bring what is injected into processes; most commands need none of it.
    from breakranks.backend.attach_agents import AttachResult
    from breakranks.backend.evaluate import EvalAnswer, EvalQuestion


class JobSampler(Protocol):
    """Samples one job. ``sampled`` is how often it has."""

    @property
    def sampled(self) -> int: ...
    def __enter__(self) -> JobSampler: ...
    def __exit__(self, *exception: Any) -> None: ...

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        """One more sample. ``visit``: ask ``some`` ranks themselves, those that wait for what cannot be named from
        outside, or ``all``. ``samples`` 0: only what the process table says."""

    def snapshot(self, keep: int | None = None) -> Snapshot:
        """All that was seen; ``keep``: of the newest samples only."""


class RunningJob(Protocol):
    """One job that runs, with its ranks and those that are missing."""

    @property
    def job(self) -> Job: ...
    @property
    def ranks(self) -> tuple[FoundRank, ...]: ...
    @property
    def missing(self) -> tuple[Missing, ...]: ...

    def sampler(self, *, ranks: RankSet | None = None, details: bool = True, keep: int = 0) -> JobSampler:
        """To look at it, or at some ranks. ``details``: with files, sockets and locks. ``keep``: how many samples hosts
        send."""

    def attach(self, ranks: RankSet | None) -> AttachResult:
        """Bring an agent into each rank."""

    def evaluate(self, ranks: RankSet | None, question: EvalQuestion, timeout: float) -> Sequence[EvalAnswer]:
        """Ask ranks for the value of an expression."""


class Backend(Protocol):
    """Finds jobs, and what is brought into them. ``agents`` is how to get to the agents of ranks."""

    @property
    def agents(self) -> AgentPlace: ...
    @property
    def is_local(self) -> bool:
        """Whether it is this machine."""

    def jobs(self) -> tuple[RunningJob, ...]: ...
    def problems(self) -> tuple[Problem, ...]:
        """What could not be seen while jobs were looked for."""

    def job(self, key: str | None) -> RunningJob:
        """The one that a command is about; an error that says what to choose from where that is not clear."""

    def rounds(self, key: str | None, *, patient: bool) -> Iterator[RunningJob]:
        """The same; once more, if hosts that were late have answered. ``patient``: once, with all of them."""

    def words_for(self, agents: Iterable[FoundAgent]) -> list[str]:
        """The words of a command line that name the job of these agents."""

    def words_for_ranks(self, ranks: Iterable[tuple[int, int]]) -> list[str]:
        """The words of a command line for some ranks, each with its pid."""

    def end(self, agents: Iterable[FoundAgent]) -> list[str]:
        """End the job of these agents; who is still there."""

    def close(self) -> None: ...
