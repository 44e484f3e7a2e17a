"""The protocols of a backend: this machine (``LocalBackend``) or the hosts of a target (``hosts.HostsBackend``).

Commands use only these protocols. The agent of a host serves a ``LocalBackend``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from breakranks.jobs.found_jobs import FoundRank
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Job, Missing, Problem, Snapshot

if TYPE_CHECKING:
    # They import what is injected into processes, which most commands do not need.
    from breakranks.backend.attach_agents import AttachResult
    from breakranks.backend.evaluate import EvalAnswer, EvalQuestion
    from breakranks.backend.found_agents import AgentPlace, FoundAgent


class JobSampler(Protocol):
    """Samples one job. ``sampled`` is the number of samples so far."""

    @property
    def sampled(self) -> int: ...
    def __enter__(self) -> JobSampler: ...
    def __exit__(self, *exception: Any) -> None: ...

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        """Take one more sample. ``recorders``: also read flight recorders, with injected code. ``visit``: query ``all``
        ranks with injected code, or ``some``: ranks that wait for something that cannot be named from outside.
        ``samples`` 0: read only the process table."""

    def snapshot(self, keep: int | None = None) -> Snapshot:
        """Return a snapshot of every sample, or of the last ``keep`` samples."""


class RunningJob(Protocol):
    """One running job, with its ranks and its missing ranks."""

    @property
    def job(self) -> Job: ...
    @property
    def ranks(self) -> tuple[FoundRank, ...]: ...
    @property
    def missing(self) -> tuple[Missing, ...]: ...

    def sampler(self, *, ranks: RankSet | None = None, details: bool = True, keep: int = 0) -> JobSampler:
        """Return a sampler of the job, or of some ranks. ``details``: with helpers, files, sockets and locks. ``keep``:
        how many samples hosts send, 0 for all."""

    def attach(self, ranks: RankSet | None) -> AttachResult:
        """Start an agent in each rank."""

    def evaluate(self, ranks: RankSet | None, question: EvalQuestion, timeout: float) -> Sequence[EvalAnswer]:
        """Return the answers of ranks to an expression."""


class Backend(Protocol):
    """Finds jobs and ends them. ``agents`` finds the agents in ranks and connects to them."""

    @property
    def agents(self) -> AgentPlace: ...
    @property
    def is_local(self) -> bool:
        """Whether the jobs are on this machine."""

    def jobs(self) -> tuple[RunningJob, ...]: ...
    def problems(self) -> tuple[Problem, ...]:
        """Return what could not be seen when jobs were last searched for."""

    def job(self, key: str | None) -> RunningJob:
        """Return the job with this key, or the only job; raise an error that lists the jobs if there are several."""

    def rounds(self, key: str | None, *, patient: bool) -> Iterator[RunningJob]:
        """Yield the same job, and again if late hosts have answered since. ``patient``: once, with all hosts."""

    def words_for(self, agents: Iterable[FoundAgent]) -> list[str]:
        """Return the words of a command line that name the job of these agents."""

    def words_for_ranks(self, ranks: Iterable[tuple[int, int]]) -> list[str]:
        """Return the words of a command line that name these ranks, each given with its pid."""

    def end(self, agents: Iterable[FoundAgent]) -> list[str]:
        """End the job of these agents; return the processes that remain."""

    def close(self) -> None: ...
