"""The job that a watch is about: found, found again after a restart or a lost connection, and sampled.

A job on hosts is found by connecting to them; to find it again, the hosts are connected to again.
"""

from __future__ import annotations

from collections.abc import Callable

from breakranks.backend.found_agents import FoundAgent
from breakranks.backend.job_backend import Backend, JobSampler, RunningJob
from breakranks.errors import NoJobError
from breakranks.observe.process_table import read_entry, read_table
from breakranks.snapshot.model import Snapshot

# Samples that a sampler keeps: those of all looks without progress, and of the explanation at their end.
KEPT_SAMPLES = 60
_ENDED_STATES = ("Z", "X", "")
_SEEN_STATE = "seen"


class WatchedJob:
    """One job over its whole life. ``below``: only a job whose processes descend from this one, 0 for any."""

    def __init__(self, open_backend: Callable[[], Backend], key: str | None = None, *, below: int = 0) -> None:
        self._open = open_backend
        self._key = key
        self._below = below
        self._backend: Backend | None = None
        self._sampler: JobSampler | None = None
        self.job: RunningJob | None = None

    @property
    def is_local(self) -> bool:
        return self._backend is None or self._backend.is_local

    @property
    def name(self) -> str:
        """The key of the job, or "" before it was found."""
        return self.job.job.key if self.job is not None else ""

    def find(self) -> RunningJob:
        """Find the job, again if it was found before. Raise a BreakranksError if that is not possible. Samples are kept
        if it is as it was."""
        if self._backend is not None and not self._backend.is_local:
            self.close()
        if self._backend is None:
            self._backend = self._open()
        job = self._job_below(self._backend) if self._below else self._backend.job(self._key)
        if self.job is not None and self._sampler is not None and _parts(job) == _parts(self.job):
            return self.job
        self.drop_sampler()
        self.job, self._key = job, job.job.key
        return job

    def _job_below(self, backend: Backend) -> RunningJob:
        table = read_table()
        below = {self._below, *(entry.pid for entry in table.descendants(self._below))}
        found = [job for job in backend.jobs() if below & {job.job.launcher_pid, *(rank.pid for rank in job.ranks)}]
        if not found or (self.job is None and not any(job.ranks for job in found)):
            raise NoJobError(f"no job was found below process {self._below}")
        return max(found, key=lambda job: (job.job.key == self._key, len(job.ranks)))

    def sampler(self) -> JobSampler:
        """Return the sampler of the job, which keeps its samples until :meth:`drop_sampler`."""
        if self._sampler is None:
            assert self.job is not None, "find it first"
            sampler = self.job.sampler(keep=KEPT_SAMPLES)
            sampler.__enter__()
            self._sampler = sampler
        return self._sampler

    def drop_sampler(self) -> None:
        """Forget all samples."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.__exit__(None, None, None)

    def end(self, snapshot: Snapshot) -> list[str]:
        """End the job that a snapshot shows, with its launcher; return the processes that remain."""
        assert self._backend is not None
        self.drop_sampler()
        processes = [(rank.rank, rank.host, rank.process.pid) for rank in snapshot.ranks]
        if not processes and snapshot.job.launcher_pid:
            processes = [(0, "", snapshot.job.launcher_pid)]
        return self._backend.end(_agent(self.name, *process) for process in processes)

    def close(self) -> None:
        """Disconnect."""
        self.drop_sampler()
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()


def _parts(job: RunningJob) -> object:
    return job.job.launcher_pid, job.ranks, job.missing


def _agent(job: str, rank: int, host: str, pid: int) -> FoundAgent:
    """Return a process in the form in which a backend is told what to end."""
    return FoundAgent(job=job, rank=rank, pid=pid, helper=False, path="", debugging=False, host=host)


def has_ended(snapshot: Snapshot) -> bool:
    """Whether no live rank is left, or the launcher of a job without ranks has ended."""
    if not snapshot.ranks:
        return snapshot.launcher is None or snapshot.launcher.state in _ENDED_STATES
    return all(rank.process.state in _ENDED_STATES for rank in snapshot.ranks)


def is_outdated(snapshot: Snapshot) -> bool:
    """Whether the job must be found again: a rank has ended or is missing, or a host is lost."""
    return (
        not snapshot.ranks
        or any(rank.process.state in _ENDED_STATES for rank in snapshot.ranks)
        or any(missing.reason != "elsewhere" for missing in snapshot.missing)
        or any(host.state != _SEEN_STATE for host in snapshot.hosts)
    )


class ProcessLife:
    """Whether a process, identified by its number and its start, still runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ticks = self._started()

    def _started(self) -> int:
        entry = read_entry(self.pid)
        return entry.ticks if entry is not None and entry.state not in _ENDED_STATES else 0

    def is_over(self) -> bool:
        return not self._ticks or self._started() != self._ticks
