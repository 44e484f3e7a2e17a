"""The jobs of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from breakranks.backend.end_job import end_job
from breakranks.backend.sampler import Sampler
from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
from breakranks.jobs.local_jobs import find_jobs
from breakranks.jobs.targets import Pids, job_of_pids, select
from breakranks.observe.process_table import read_table
from breakranks.observe.pyspy_parse import threads_of
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Job, Missing, Problem

if TYPE_CHECKING:
    from breakranks.backend.attach_agents import AttachResult
    from breakranks.backend.evaluate import EvalAnswer, EvalQuestion
    from breakranks.backend.found_agents import FoundAgent, LocalAgents


class LocalJob:
    """A job of this machine. What is injected into processes is imported when it is needed."""

    def __init__(self, found: FoundJob) -> None:
        self.found = found

    @property
    def job(self) -> Job:
        return self.found.job

    @property
    def ranks(self) -> tuple[FoundRank, ...]:
        return self.found.ranks

    @property
    def missing(self) -> tuple[Missing, ...]:
        return self.found.missing

    def sampler(self, *, ranks: RankSet | None = None, details: bool = True, keep: int = 0) -> Sampler:
        return Sampler(self.found, ranks=ranks, details=details, keep=keep)

    def attach(self, ranks: RankSet | None, deadline: float | None = None) -> AttachResult:
        from breakranks.backend.attach_agents import ATTACH_SECONDS, attach

        return attach(self.found, ranks, deadline=ATTACH_SECONDS if deadline is None else deadline)

    def evaluate(
        self, ranks: RankSet | None, question: EvalQuestion, timeout: float, takers: RankSet | None = None
    ) -> Sequence[EvalAnswer]:
        from breakranks.backend.evaluate import ask

        return ask(self.found, ranks, question, deadline=timeout, takers=takers)


class LocalBackend:
    """``target``: the processes that are the job, or None for every job of this machine."""

    is_local = True

    def __init__(self, target: Pids | None = None) -> None:
        self._target = target
        self._found: LocalJobs | None = None

    @cached_property
    def agents(self) -> LocalAgents:
        from breakranks.backend.found_agents import LocalAgents  # 6 ms, and a sample needs no agent

        return LocalAgents()

    def find(self) -> LocalJobs:
        """Search for jobs again."""
        self._found = find_jobs(read_table(), stack_of=_threads_of)
        return self._found

    def jobs(self) -> tuple[LocalJob, ...]:
        return tuple(LocalJob(job) for job in self.find().jobs)

    def problems(self) -> tuple[Problem, ...]:
        return self._found.problems if self._found is not None else ()

    def job(self, key: str | None) -> LocalJob:
        if self._target is None:
            return LocalJob(select(self.find(), key))
        table = read_table()
        found = find_jobs(table, stack_of=_threads_of)
        return LocalJob(job_of_pids(table, self._target.pids, found=found))

    def rounds(self, key: str | None, *, patient: bool) -> Iterator[LocalJob]:
        yield self.job(key)

    def words_for(self, agents: Iterable[FoundAgent]) -> list[str]:
        pids = [agent.pid for agent in agents]
        job = self._job_with(pids)
        return ["local", "--job", job.job.key] if job is not None else [f"pid:{','.join(map(str, pids))}"]

    def words_for_ranks(self, ranks: Iterable[tuple[int, int]]) -> list[str]:
        return [f"pid:{','.join(str(pid) for _, pid in ranks)}"]

    def end(self, agents: Iterable[FoundAgent]) -> list[str]:
        return [f"pid {pid}" for pid in self.end_pids([agent.pid for agent in agents])]

    def end_pids(self, pids: Iterable[int]) -> list[int]:
        """End the job that these processes belong to; return the pids that remain."""
        known = set(pids)
        job = self._job_with(known)
        ranks = [rank.pid for rank in job.ranks] if job is not None else []
        return end_job(job.job.launcher_pid if job is not None else 0, sorted({*known, *ranks}))

    def close(self) -> None:
        pass

    def _job_with(self, pids: Iterable[int]) -> FoundJob | None:
        known = set(pids)
        return next((job for job in self.find().jobs if known & {rank.pid for rank in job.ranks}), None)


def _threads_of(pid: int) -> Sequence[Mapping[str, Any]] | None:
    """The threads of a process with their variables: by py-spy, or by the agent in a process that may not be traced."""
    found = threads_of(pid)
    if found:
        return found
    from breakranks.backend import agent_stacks  # few processes are refused

    return agent_stacks.threads_of(pid) or found
