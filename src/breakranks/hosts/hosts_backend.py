"""The jobs on the hosts of a target: reach the hosts, find the job that a command is about, and say who is late."""

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
from breakranks.backend.rank_connection import FoundAgent
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
from breakranks.observe.process_table import redact
from breakranks.rankset import RankSet
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.model import Job, Missing, Problem

_SOON_SECONDS = 1.0  # until progress is said
_GRACE_SECONDS = 1.5  # in which a host may be later than most, before the others are shown without it


class HostNotices(Protocol):
    """What a person is told meanwhile."""

    def progress(self, waiting: str, answered: int, total: int) -> None:
        """So many of the hosts have answered; ``waiting``: the others, folded."""

    def done(self) -> None:
        """There is no more progress to show."""

    def late(self, hosts: str) -> None:
        """What was shown is without these, which are waited for."""

    def arrived(self, hosts: str) -> None:
        """They have answered since; what follows is with them."""

    def lost(self, reasons: Iterable[tuple[str, LostHost]]) -> None:
        """They have not: why, by hosts."""


class ReachOptions(Struct, frozen=True, kw_only=True):
    """How the hosts of a target are reached. ``words`` are the target and these options as they were typed. ``native``:
    C frames will be asked for, which needs more of our code there."""

    words: tuple[str, ...]
    transport: TransportOptions
    native: bool = False


class HostsJob:
    """A job on hosts; ``found`` is what each of them has of it."""

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
    """The hosts of one target, from the first word to the last."""

    is_local = False

    def __init__(self, target: Hosts, options: ReachOptions, notices: HostNotices) -> None:
        self._options = options
        self._notices = notices
        nonce = secrets.token_hex(8)
        how = options.transport

        def remote(piece: int) -> tuple[str, ...]:
            return remote_command(nonce, piece=piece, python=how.python, setup=how.setup, sudo=how.sudo)

        # C frames need pystack, the largest part of what may have to travel; few commands read them.
        tools = ("py-spy", "pystack") if options.native else ("py-spy",)
        self.controller = HostController(
            plan(target, how, remote),
            nonce=nonce,
            deadline=how.deadline,
            fanout=how.fanout,
            supply=partial(supply, tools=tools),
        )
        # It goes into snapshots and `next` lines: a token in a template or a set-up must not.
        self.controller.typed = shlex.join(redact(list(options.words)))
        self._found: dict[str, LocalJobs] = {}  # by a host's plain name
        self._began = time.monotonic()
        self.controller.waits_for = self._waits_for
        self.controller.__enter__()

    @property
    def agents(self) -> RemoteRanks:
        self._meet(patient=True)
        return RemoteRanks(self.controller, self._found)

    def close(self) -> None:
        self._notices.done()
        self.controller.close()

    def jobs(self) -> tuple[HostsJob, ...]:
        self._meet(patient=True)
        return tuple(HostsJob(self, one) for one in self._jobs())

    def problems(self) -> tuple[Problem, ...]:
        return problems(self._found)

    def job(self, key: str | None) -> HostsJob:
        self._meet(patient=True)
        return self._job(key)

    def rounds(self, key: str | None, *, patient: bool) -> Iterator[HostsJob]:
        """The job as soon as most of its hosts have answered; and once more, if others did until the deadline."""
        self._meet(patient=patient)
        if not self._found:
            self._meet(patient=True)
        late = [name for name, one in self.controller.host_states.items() if one.lost is None and not one.told]
        try:
            job = self._job(key)
        except NoJobError:
            if not late:
                raise
            late = []
            job = self.job(key)  # it may be on those that are late
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
        """How far each host goes."""
        self._meet(patient=True)
        return hosts_sampler.host_checks(self.controller)

    def _jobs(self) -> tuple[ClusterJob, ...]:
        return hosts_sampler.jobs_of(self.controller, self._found)

    def _job(self, key: str | None) -> HostsJob:
        if not self._found:
            raise hosts_sampler.nothing_seen(self.controller)
        jobs = self._jobs()
        where = f"on the hosts of {self.controller.plan.name}"
        if not jobs:
            lost = "".join(f"\n{hosts}: {lost.what}" for hosts, lost in hosts_sampler.reasons(self.controller))
            raise NoJobError(f"no job {where}{lost}", f"Check each host: breakranks hosts {self.controller.plan.name}")
        return HostsJob(self, select_of(jobs, key, where))

    def _meet(self, *, patient: bool) -> list[str]:
        """Wait for hosts, and ask those that have come which jobs they have. The hosts that are new.

        ``patient``: until all have come or are lost; else not for a few that are much later than the others.
        """
        controller = self.controller
        while controller.waiting and not (not patient and self._late()):
            controller.wait(lambda: not controller.waiting, 0.1)
            if controller.waiting and time.monotonic() - self._began > _SOON_SECONDS:
                self._waits_for(controller.waiting)
        new = [name for name in controller.up if hosts_sampler.plain(name) not in self._found]
        if new:
            hosts_sampler.find(controller, new, self._found)
        self._notices.done()
        return new

    def _late(self) -> bool:
        """Whether those who are still to come are so late that the others need not wait."""
        return bool(self.controller.up) and time.monotonic() - max(self._began, self.controller.newest) > _GRACE_SECONDS

    def _waits_for(self, names: Sequence[str]) -> None:
        if not names:
            self._notices.done()
            return
        total = len(self.controller.host_states)
        self._notices.progress(fold(map(hosts_sampler.plain, names)), total - len(names), total)
