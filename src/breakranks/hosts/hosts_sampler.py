"""Sampling a job on several hosts as if it were on one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from breakranks.errors import BreakranksError, SnapshotError
from breakranks.hosts.controller import HostController
from breakranks.hosts.host_check import HostCheck
from breakranks.hosts.host_message_checks import fault_of, snapshot_of
from breakranks.hosts.host_messages import (
    CheckHost,
    CheckStep,
    FindJobs,
    HostChecked,
    JobsFound,
    Reply,
    RequestFailed,
    SampleTaken,
    SelectJob,
    TakeSample,
)
from breakranks.hosts.transports import LostHost
from breakranks.jobs.found_jobs import LocalJobs
from breakranks.jobs.merge_jobs import ClusterJob, join
from breakranks.rankset import RankSet
from breakranks.snapshot.host_names import fold, with_name, without_name
from breakranks.snapshot.merge_hosts import merge, no_collection
from breakranks.snapshot.model import Host, Snapshot, only

_ODD = "Check that both sides run the same version of breakranks, and that you trust this host."
_MAX_STEPS = 10
_MAX_REASON_CHARACTERS = 500


def find(controller: HostController, hosts: list[str], found: dict[str, LocalJobs]) -> None:
    """Find the jobs of these hosts, and add them to ``found`` by the plain name of the host."""
    for name, reply in controller.ask(dict.fromkeys(hosts, FindJobs(0, controller.plan.slurm)), controller.deadline):
        if isinstance(reply, JobsFound) and (wrong := fault_of(reply.found)):
            controller.lose(name, LostHost(kind="failed", what=wrong, remedy=_ODD))
        elif isinstance(reply, JobsFound):
            found[plain(name)] = reply.found
            controller.host_states[name].told = True
        else:
            _failed(controller, name, reply)


def jobs_of(controller: HostController, found: dict[str, LocalJobs]) -> tuple[ClusterJob, ...]:
    return join(found, hosts=hosts_of(controller))


def hosts_of(controller: HostController) -> list[Host]:
    """Return every host of the target with its present state."""
    hosts = []
    for host in controller.host_states.values():
        name = plain(host.name)
        if host.lost is not None:
            hosts.append(Host(name=name, state=host.lost.kind, reason=host.lost.what, remedy=host.lost.remedy))
        elif host.hello is None or not host.told:
            hosts.append(Host(name=name, state="timed-out", reason="has not answered yet"))
        else:
            addresses = host.hello.addresses
            hosts.append(Host(name=name, clock=host.clock, clock_error=host.clock_error, addresses=addresses))
    return hosts


class HostsSampler:
    """Samples one job on all its hosts, as ``backend.sampler.Sampler`` does on one."""

    def __init__(
        self,
        controller: HostController,
        job: ClusterJob,
        *,
        ranks: RankSet | None = None,
        details: bool = True,
        keep: int = 0,
    ) -> None:
        self._controller = controller
        self._job = job
        self._keep = keep
        self._parts: dict[str, Snapshot] = {}
        self._selections: dict[str, SelectJob] = {}
        names = names_of(controller)
        for host, part in job.parts.items():
            here = None if ranks is None else ranks & RankSet(rank.rank for rank in part.ranks)
            if here is None or here:
                self._selections[names[host]] = SelectJob(part.job.key, None if here is None else str(here), details)
        self._begun: set[str] = set()
        self.sampled = 0
        self.received = 0

    def __enter__(self) -> HostsSampler:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        """Take one more sample on every host that is not lost."""
        request = TakeSample(
            id=0, look=None, samples=samples, native=native, recorders=recorders, visit=visit, keep=self._keep
        )
        requests = {
            name: request if name in self._begun else replace(request, look=selection)
            for name, selection in self._selections.items()
            if self._controller.host_states[name].lost is None
        }
        seconds = self._controller.longer if native or recorders or visit == "all" else self._controller.deadline
        with no_collection():
            for name, reply in self._controller.ask(requests, seconds):
                self._begun.add(name)
                if isinstance(reply, SampleTaken):
                    self._take(name, reply)
                else:
                    _failed(self._controller, name, reply)
        self.sampled += samples

    def _take(self, name: str, reply: SampleTaken) -> None:
        self.received += len(reply.snapshot)
        try:
            taken = named(snapshot_of(reply.snapshot), plain(name))
            self._parts[name] = only(taken, RankSet(rank.rank for rank in self._job.parts[plain(name)].ranks))
        except SnapshotError as error:
            lost = LostHost(kind="failed", what=f"its snapshot {error.message}", remedy=error.help)
            self._controller.lose(name, lost)

    def snapshot(self, keep: int | None = None) -> Snapshot:
        """Return one snapshot of all hosts, with every sample so far."""
        if not self._parts:
            raise nothing_seen(self._controller)
        merged = merge(
            list(self._parts.values()),
            hosts=hosts_of(self._controller),
            job=self._job.job,
            missing=self._job.missing,
            places=self._job.places,
        )
        return replace(merged, target=self._controller.typed)


def host_checks(controller: HostController) -> list[HostCheck]:
    """Return the checks of each host, including hosts that were not reached."""
    taken: dict[str, tuple[CheckStep, ...]] = {}
    for name, reply in controller.ask(
        dict.fromkeys(controller.up, CheckHost(0, controller.plan.slurm)), controller.longer
    ):
        if isinstance(reply, HostChecked):
            taken[name] = tuple(
                CheckStep(
                    step.name[:40], step.fine, step.what[:_MAX_REASON_CHARACTERS], step.remedy[:_MAX_REASON_CHARACTERS]
                )
                for step in reply.steps[:_MAX_STEPS]
            )
        else:
            _failed(controller, name, reply)
    checks = []
    for host in controller.host_states.values():
        steps = []
        if host.hello is not None:
            sent = ", breakranks sent to it" if host.hello.shipped else ""
            steps += [CheckStep("log in", True, ""), CheckStep("python", True, f"{host.hello.python}{sent}")]
        if host.lost is not None:
            name = "python" if host.lost.kind == "no-python" else "log in" if host.hello is None else "answer"
            steps.append(CheckStep(name, False, host.lost.what, host.lost.remedy))
        checks.append(HostCheck(plain(host.name), (*steps, *taken.get(host.name, ()))))
    return checks


def plain(name: str) -> str:
    """Return the name of a host without the user that logs in."""
    return name.rpartition("@")[2]


def names_of(controller: HostController) -> dict[str, str]:
    """Return the names in the target by plain name. If two names are one host, the name that answers is used."""
    names: dict[str, str] = {}
    for host in controller.host_states.values():
        if host.lost is None or plain(host.name) not in names:
            names[plain(host.name)] = host.name
    return names


def named(snapshot: Snapshot, host: str) -> Snapshot:
    """Return the snapshot of a host under its name in the target, which may differ from its own name."""
    return replace(
        snapshot,
        ranks=tuple(replace(rank, host=host) for rank in snapshot.ranks),
        hosts=tuple(replace(entry, name=host) for entry in snapshot.hosts),
    )


def nothing_seen(controller: HostController) -> BreakranksError:
    """Return the error for a target of which no host could be inspected."""
    rows = list(reasons(controller))
    message = f"none of the hosts of {controller.plan.name} could be inspected"
    return BreakranksError(
        "\n".join([message, *(f"  {hosts}: {lost.what}" for hosts, lost in rows)]),
        "\n".join(dict.fromkeys(lost.remedy for _, lost in rows if lost.remedy)),
    )


def reasons(controller: HostController) -> Iterator[tuple[str, LostHost]]:
    """Yield the reasons why hosts are lost, each with its hosts, folded."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, lost in controller.lost.items():
        # Reasons that differ only in the name of the host are the same.
        texts = (without_name(text, name) for text in (lost.what, lost.remedy))
        what, remedy = (without_name(text, plain(name)) for text in texts)
        groups.setdefault((lost.kind, what, remedy), []).append(plain(name))
    for (kind, what, remedy), names in groups.items():
        folded = fold(names)
        yield folded, LostHost(kind=kind, what=with_name(what, folded), remedy=with_name(remedy, names[0]))


def _failed(controller: HostController, name: str, reply: Reply) -> None:
    what, help = (
        (reply.what, reply.help) if isinstance(reply, RequestFailed) else ("sent an answer that was not asked for", "")
    )
    controller.lose(
        name, LostHost(kind="failed", what=what[:_MAX_REASON_CHARACTERS], remedy=help[:_MAX_REASON_CHARACTERS])
    )
