"""The jobs on the hosts of a target: connect to the hosts, find the job of a command, and report late hosts."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from breakranks.backend.attach_agents import AttachResult
from breakranks.backend.evaluate import EvalAnswer, EvalQuestion
from breakranks.backend.found_agents import FoundAgent
from breakranks.errors import NoJobError
from breakranks.hosts import hosts_sampler
from breakranks.hosts.bootstrap.bundle import supply
from breakranks.hosts.bootstrap.shell_command import remote_command
from breakranks.hosts.controller import HostController
from breakranks.hosts.host_check import HostCheck
from breakranks.hosts.hosts_sampler import HostsSampler
from breakranks.hosts.remote_ranks import RemoteRanks
from breakranks.hosts.transports import LostHost, TransportOptions, plan
from breakranks.jobs.found_jobs import FoundRank, LocalJobs
from breakranks.jobs.merge_jobs import ClusterJob, problems
from breakranks.jobs.targets import Hosts, select_of
from breakranks.observe.redaction import redact
from breakranks.rankset import RankSet
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.model import Job, Missing, Problem

_PROGRESS_SECONDS = 1.0  # before progress is shown
_GRACE_SECONDS = 1.5  # after the newest host, before the others are shown without the late ones


class HostNotices(Protocol):
    """What a user is told while hosts are awaited."""

    def progress(self, waiting: str, answered: int, total: int) -> None:
        """Tell how many of the hosts have answered; ``waiting``: the others, folded."""

    def done(self) -> None:
        """Remove the progress."""

    def late(self, hosts: str) -> None:
        """Tell that the result above is without these hosts, which are still awaited."""

    def arrived(self, hosts: str) -> None:
        """Tell that these hosts have answered, and that the next result includes them."""

    def lost(self, reasons: Iterable[tuple[str, LostHost]]) -> None:
        """Tell why hosts have not answered."""


class ReachOptions(Struct, frozen=True, kw_only=True):
    """How the hosts of a target are reached. ``words`` are the target and these options as they were typed. ``native``:
    C frames will be read, for which more code is sent to a host."""

    words: tuple[str, ...]
    transport: TransportOptions
    native: bool = False


class HostsJob:
    """A job on hosts. ``found`` has the part of it on each host."""

    def __init__(self, backend: HostsBackend, found: ClusterJob) -> None:
        self._backend = backend
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

    def sampler(self, *, ranks: RankSet | None = None, details: bool = True, keep: int = 0) -> HostsSampler:
        return HostsSampler(self._backend.controller, self.found, ranks=ranks, details=details, keep=keep)

    def attach(self, ranks: RankSet | None) -> AttachResult:
        return self._backend.agents.attach(self.found, ranks)

    def evaluate(self, ranks: RankSet | None, question: EvalQuestion, timeout: float) -> Sequence[EvalAnswer]:
        return self._backend.agents.ask(self.found, ranks, question, timeout)


class HostsBackend:
    """The hosts of one target. They are connected to from the constructor on, until :meth:`close`."""

    is_local = False

    def __init__(self, target: Hosts, options: ReachOptions, notices: HostNotices) -> None:
        self._options = options
        self._notices = notices
        nonce = secrets.token_hex(8)
        transport = options.transport

        def remote(piece: int) -> tuple[str, ...]:
            return remote_command(
                nonce, piece=piece, python=transport.python, setup=transport.setup, sudo=transport.sudo
            )

        # C frames need pystack, the largest part of what may have to be sent; few commands read them.
        tools = ("py-spy", "pystack") if options.native else ("py-spy",)
        self.controller = HostController(
            plan(target, transport, remote),
            nonce=nonce,
            deadline=transport.deadline,
            fanout=transport.fanout,
            supply=partial(supply, tools=tools),
        )
        # It goes into snapshots and `next` lines, where a token in a template or in --setup must not appear.
        self.controller.typed = shlex.join(redact(list(options.words)))
        self._found: dict[str, LocalJobs] = {}  # by the plain name of a host
        self._began = time.monotonic()
        self.controller.waits_for = self._waits_for
        self.controller.__enter__()

    @property
    def name(self) -> str:
        """The target, as a user writes it."""
        return self.controller.plan.name

    @property
    def agents(self) -> RemoteRanks:
        self._meet(patient=True)
        return RemoteRanks(self.controller, self._found)

    def close(self) -> None:
        self._notices.done()
        self.controller.close()

    def jobs(self) -> tuple[HostsJob, ...]:
        self._meet(patient=True)
        return tuple(HostsJob(self, job) for job in self._jobs())

    def problems(self) -> tuple[Problem, ...]:
        return problems(self._found)

    def job(self, key: str | None) -> HostsJob:
        self._meet(patient=True)
        return self._job(key)

    def rounds(self, key: str | None, *, patient: bool) -> Iterator[HostsJob]:
        """Yield the job as soon as most of its hosts have answered, and again if late hosts answer in time."""
        self._meet(patient=patient)
        if not self._found:
            self._meet(patient=True)
        late = [name for name, host in self.controller.host_states.items() if host.lost is None and not host.told]
        try:
            job = self._job(key)
        except NoJobError:
            if not late:
                raise
            late = []
            job = self.job(key)  # it may be on the late hosts
        yield job
        if not late:
            return
        names = fold(map(hosts_sampler.plain, late))
        if self.controller.waiting:
            self._notices.late(names)
        if self._meet(patient=True):
            self._notices.arrived(names)
            yield self._job(key)
        else:
            self._notices.lost(hosts_sampler.reasons(self.controller))

    def words_for(self, agents: Iterable[FoundAgent]) -> list[str]:
        key = self.agents.key_of(agents)
        target, *options = self._options.words
        return [target, *(["--job", key] if key else []), *options]

    def words_for_ranks(self, ranks: Iterable[tuple[int, int]]) -> list[str]:
        target, *options = self._options.words
        return [target, "--rank", ",".join(str(rank) for rank, _ in ranks), *options]

    def end(self, agents: Iterable[FoundAgent]) -> list[str]:
        return self.agents.end(agents)

    def checks(self) -> list[HostCheck]:
        """Return the checks of each host."""
        self._meet(patient=True)
        return hosts_sampler.host_checks(self.controller)

    def _jobs(self) -> tuple[ClusterJob, ...]:
        return hosts_sampler.jobs_of(self.controller, self._found)

    def _job(self, key: str | None) -> HostsJob:
        if not self._found:
            raise hosts_sampler.nothing_seen(self.controller)
        jobs = self._jobs()
        where = f"on the hosts of {self.name}"
        if not jobs:
            lost = "".join(f"\n{hosts}: {lost.what}" for hosts, lost in hosts_sampler.reasons(self.controller))
            raise NoJobError(f"no job {where}{lost}", f"Check each host: breakranks hosts {self.name}")
        return HostsJob(self, select_of(jobs, key, where))

    def _meet(self, *, patient: bool) -> list[str]:
        """Wait for hosts, find the jobs of those that have connected, and return the new hosts.

        ``patient``: until every host is connected or lost; otherwise not for a few hosts that are much later.
        """
        controller = self.controller
        while controller.waiting and not (not patient and self._awaited_are_late()):
            controller.wait(lambda: not controller.waiting, 0.1)
            if controller.waiting and time.monotonic() - self._began > _PROGRESS_SECONDS:
                self._waits_for(controller.waiting)
        new = [name for name in controller.up if hosts_sampler.plain(name) not in self._found]
        if new:
            hosts_sampler.find(controller, new, self._found)
        self._notices.done()
        return new

    def _awaited_are_late(self) -> bool:
        """Return whether the hosts still awaited are so late that the connected ones need not wait for them."""
        return bool(self.controller.up) and time.monotonic() - max(self._began, self.controller.newest) > _GRACE_SECONDS

    def _waits_for(self, names: Sequence[str]) -> None:
        if not names:
            self._notices.done()
            return
        total = len(self.controller.host_states)
        self._notices.progress(fold(map(hosts_sampler.plain, names)), total - len(names), total)
