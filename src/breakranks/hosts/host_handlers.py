"""What an agent does for its controller, on its own host: find jobs, look at them, get into their ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from breakranks.backend.attach_agents import wait_for_leave
from breakranks.backend.evaluate import EvalQuestion
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
)
from breakranks.jobs.found_jobs import FoundJob
from breakranks.log import Log, milliseconds
from breakranks.observe.process_table import ProcessTable, read_table
from breakranks.rankset import RankSet
from breakranks.snapshot.snapshot_file import pack

_log = Log("hosts")


class HostService:
    """``sockets`` are those that it has told of: a link may go to them and to nothing else."""

    def __init__(self) -> None:
        self._backend = LocalBackend()
        self._jobs: dict[str, LocalJob] = {}
        self._session: Sampler | None = None
        self.sockets: set[str] = set()
        self._brought: list[Any] = []
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
        """The answer to a request. Whatever goes wrong is an answer too."""
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
        """Nothing of ours stays: what is looked at goes on, and agents that were brought in leave."""
        self._end_look()
        if self._brought:
            wait_for_leave(self._brought)

    # ---- looking

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
            self._look(request.look)
        session = self._session
        if session is None:
            raise NoJobError("no job is being looked at")
        session.sample(native=request.native, recorders=request.recorders, visit=request.visit, samples=request.samples)
        return SampleTaken(request.id, pack(session.snapshot(request.keep or None)))

    def _look(self, look: SelectJob) -> None:
        self._end_look()
        session = self._job(look.key).sampler(ranks=_ranks(look.ranks), details=look.details)
        self._session = session.__enter__()

    def _end_look(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None)

    # ---- getting in

    def _attach(self, request: AttachAgents) -> AgentsAttached:
        found = self._job(request.key).attach(_ranks(request.ranks), request.deadline)
        self.sockets.update(one.path for one in found.agents)
        self._brought += found.agents
        return AgentsAttached(request.id, _plain(found.agents), _plain(found.unreached))

    def _agents(self, request: ListAgents) -> AgentsAttached:
        found = self._backend.agents.find()
        self.sockets.update(one.path for one in found)
        return AgentsAttached(request.id, _plain(found))

    def _eval(self, request: Evaluate) -> Evaluated:
        question = EvalQuestion(**request.question)
        told = self._job(request.key).evaluate(
            _ranks(request.ranks), question, request.deadline, takers=RankSet.parse(request.takers)
        )
        return Evaluated(request.id, _plain(told))

    def _end(self, request: EndJob) -> JobEnded:
        self._end_look()
        return JobEnded(request.id, tuple(self._backend.end_pids(request.pids)))

    def _check(self, request: CheckHost) -> HostChecked:
        found = self._find(FindJobs(request.id, request.slurm)).found
        return HostChecked(request.id, host_check(found))


def _ranks(text: str | None) -> RankSet | None:
    return None if text is None else RankSet.parse(text)


def _plain(values: Any) -> tuple[dict[str, Any], ...]:
    return tuple(msgspec.to_builtins(one) for one in values)


def _of_slurm(table: ProcessTable, job: FoundJob, number: str, step: str) -> bool:
    """Whether a job's processes are those of a Slurm job, or of one step of it."""
    pids = [rank.pid for rank in job.ranks] or [job.job.launcher_pid]
    environ = table.environ(pids[0]) or {}
    same = environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID")) == number
    return same and (not step or environ.get("SLURM_STEP_ID") == step)
