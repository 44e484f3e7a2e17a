"""What an agent does for its controller on its host: find jobs, sample them, and start agents in their ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from breakranks.backend.local_backend import LocalBackend, LocalJob
from breakranks.backend.sampler import Sampler
from breakranks.errors import BreakranksError, NoJobError
from breakranks.hosts.host_check import host_check
from breakranks.hosts.host_messages import (
    AgentsAttached,
    AttachAgents,
    CheckHost,
    EndJob,
    Evaluate,
    Evaluated,
    FindJobs,
    HostChecked,
    JobEnded,
    JobsFound,
    ListAgents,
    Reply,
    Request,
    RequestFailed,
    SampleTaken,
    SelectJob,
    TakeSample,
    pack_snapshot,
)
from breakranks.jobs.found_jobs import FoundJob
from breakranks.log import Log, milliseconds
from breakranks.observe.process_table import ProcessTable, read_table
from breakranks.rankset import RankSet

_log = Log("hosts")


class HostService:
    """Serves requests. ``sockets`` are those that it has reported: links may be connected only to them."""

    def __init__(self) -> None:
        self._backend = LocalBackend()
        self._jobs: dict[str, LocalJob] = {}
        self._sampler: Sampler | None = None
        self.sockets: set[str] = set()
        self._injected: list[Any] = []
        self._answers: dict[type, Callable[[Any], Reply]] = {
            FindJobs: self._find,
            TakeSample: self._sample,
            AttachAgents: self._attach,
            Evaluate: self._eval,
            ListAgents: self._agents,
            EndJob: self._end,
            CheckHost: self._check,
        }

    def answer(self, request: Request) -> Reply:
        """Return the answer to a request. A failure is an answer, :class:`RequestFailed`."""
        began = time.monotonic()
        reply = self._answer(request)
        why = reply.what if isinstance(reply, RequestFailed) else None
        _log.info("request done", request=type(request).__name__, why=why, ms=milliseconds(began))
        return reply

    def _answer(self, request: Request) -> Reply:
        number: int = getattr(request, "id", 0)
        try:
            return self._answers[type(request)](request)
        except BreakranksError as error:
            return RequestFailed(number, error.message, error.help)
        except Exception as error:
            return RequestFailed(
                number, f"unexpected {type(error).__name__}: {error}", "This is a bug of breakranks, not of your job."
            )

    def close(self) -> None:
        """End sampling, and wait until the agents that were injected have left."""
        self._end_sampling()
        if self._injected:
            from breakranks.backend.attach_agents import wait_for_leave  # imported by the attach already

            wait_for_leave(self._injected)

    # ---- sampling

    def _find(self, request: FindJobs) -> JobsFound:
        found = self._backend.find()
        if request.slurm is not None:
            table = read_table()
            found = found._replace(jobs=tuple(job for job in found.jobs if _of_slurm(table, job, *request.slurm)))
        self._jobs = {job.job.key: LocalJob(job) for job in found.jobs}
        return JobsFound(request.id, found)

    def _job(self, key: str) -> LocalJob:
        job = self._jobs.get(key)
        if job is None:
            raise NoJobError(f"there is no job {key!r} on this host")
        return job

    def _sample(self, request: TakeSample) -> SampleTaken:
        if request.look is not None:
            self._select(request.look)
        sampler = self._sampler
        if sampler is None:
            raise NoJobError("no job is selected")
        sampler.keep = request.keep
        sampler.sample(native=request.native, recorders=request.recorders, visit=request.visit, samples=request.samples)
        return SampleTaken(request.id, pack_snapshot(sampler.snapshot(request.keep or None)))

    def _select(self, selected: SelectJob) -> None:
        self._end_sampling()
        sampler = self._job(selected.key).sampler(ranks=_ranks(selected.ranks), details=selected.details)
        self._sampler = sampler.__enter__()

    def _end_sampling(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.__exit__(None)

    # ---- agents in ranks

    def _attach(self, request: AttachAgents) -> AgentsAttached:
        result = self._job(request.key).attach(_ranks(request.ranks), request.deadline)
        self.sockets.update(agent.path for agent in result.agents)
        self._injected += result.agents
        return AgentsAttached(request.id, _plain(result.agents), _plain(result.unreached))

    def _agents(self, request: ListAgents) -> AgentsAttached:
        agents = self._backend.agents.find()
        self.sockets.update(agent.path for agent in agents)
        return AgentsAttached(request.id, _plain(agents))

    def _eval(self, request: Evaluate) -> Evaluated:
        from breakranks.backend.evaluate import EvalQuestion  # 25 ms, with all that injects code

        question = EvalQuestion(**request.question)
        answers = self._job(request.key).evaluate(
            _ranks(request.ranks), question, request.deadline, takers=RankSet.parse(request.takers)
        )
        return Evaluated(request.id, _plain(answers))

    def _end(self, request: EndJob) -> JobEnded:
        self._end_sampling()
        return JobEnded(request.id, tuple(self._backend.end_pids(request.pids)))

    def _check(self, request: CheckHost) -> HostChecked:
        found = self._find(FindJobs(request.id, request.slurm)).found
        return HostChecked(request.id, host_check(found))


def _ranks(text: str | None) -> RankSet | None:
    return None if text is None else RankSet.parse(text)


def _plain(values: Any) -> tuple[dict[str, Any], ...]:
    return tuple(map(asdict, values))


def _of_slurm(table: ProcessTable, job: FoundJob, number: str, step: str) -> bool:
    """Whether a job's processes are those of a Slurm job, or of one step of it."""
    pids = [rank.pid for rank in job.ranks] or [job.job.launcher_pid]
    environ = table.environ(pids[0]) or {}
    same = environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID")) == number
    return same and (not step or environ.get("SLURM_STEP_ID") == step)
