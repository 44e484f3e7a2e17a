"""A job on many hosts, looked at as if it were on one."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from breakranks.errors import BreakranksError, SnapshotError
from breakranks.hosts.controller import HostController
from breakranks.hosts.host_check import HostCheck
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
from breakranks.hosts.input_checks import fault_of
from breakranks.hosts.transports import LostHost
from breakranks.jobs.found_jobs import LocalJobs
from breakranks.jobs.merge_jobs import ClusterJob, join
from breakranks.rankset import RankSet
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.merge_hosts import merge, no_collection
from breakranks.snapshot.model import Host, Snapshot, only
from breakranks.snapshot.snapshot_file import unpack

_ODD = "Is it the same version of breakranks on both sides, and a host that you trust?"
_STEPS = 10
_MAX_REASON_CHARACTERS = 500  # characters of a host's own words


def find(controller: HostController, hosts: list[str], found: dict[str, LocalJobs]) -> None:
    """Ask hosts which jobs they have; what they say goes into ``found``, by the host's plain name."""
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
    """Every host of the target, as it is now."""
    hosts = []
    for one in controller.host_states.values():
        name = plain(one.name)
        if one.lost is not None:
            hosts.append(Host(name=name, state=one.lost.kind, reason=one.lost.what, remedy=one.lost.remedy))
        elif one.hello is None or not one.told:
            hosts.append(Host(name=name, state="timed-out", reason="has not answered yet"))
        else:
            addresses = one.hello.addresses
            hosts.append(Host(name=name, clock=one.clock, clock_error=one.clock_error, addresses=addresses))
    return hosts


class HostsSampler:
    """Looks at one job on all its hosts: what ``backend.sampler.Sampler`` is to one."""

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
        self._looks: dict[str, SelectJob] = {}
        names = names_of(controller)
        for host, part in job.parts.items():
            here = None if ranks is None else ranks & RankSet(rank.rank for rank in part.ranks)
            if here is None or here:
                self._looks[names[host]] = SelectJob(part.job.key, None if here is None else str(here), details)
        self._begun: set[str] = set()
        self.sampled = 0
        self.received = 0

    def __enter__(self) -> HostsSampler:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        """One more sample on every host that is still there."""
        plain_one = TakeSample(
            id=0, look=None, samples=samples, native=native, recorders=recorders, visit=visit, keep=self._keep
        )
        requests = {
            name: plain_one if name in self._begun else replace(plain_one, look=look)
            for name, look in self._looks.items()
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
            taken = named(unpack(reply.snapshot), plain(name))
            self._parts[name] = only(taken, RankSet(one.rank for one in self._job.parts[plain(name)].ranks))
        except SnapshotError as error:
            lost = LostHost(kind="failed", what=f"what it sent {error.message}", remedy=error.help)
            self._controller.lose(name, lost)

    def snapshot(self, keep: int | None = None) -> Snapshot:
        """Everything seen so far, of all hosts."""
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
    """How far each host goes, those that were not reached included."""
    taken: dict[str, tuple[CheckStep, ...]] = {}
    for name, reply in controller.ask(
        dict.fromkeys(controller.up, CheckHost(0, controller.plan.slurm)), controller.longer
    ):
        if isinstance(reply, HostChecked):
            taken[name] = tuple(
                CheckStep(
                    step.name[:40], step.fine, step.what[:_MAX_REASON_CHARACTERS], step.remedy[:_MAX_REASON_CHARACTERS]
                )
                for step in reply.steps[:_STEPS]
            )
        else:
            _failed(controller, name, reply)
    found = []
    for one in controller.host_states.values():
        steps = []
        if one.hello is not None:
            sent = ", our code sent along" if one.hello.shipped else ""
            steps += [CheckStep("log in", True, ""), CheckStep("python", True, f"{one.hello.python}{sent}")]
        if one.lost is not None:
            name = "python" if one.lost.kind == "no-python" else "log in" if one.hello is None else "answer"
            steps.append(CheckStep(name, False, one.lost.what, one.lost.remedy))
        found.append(HostCheck(plain(one.name), (*steps, *taken.get(one.name, ()))))
    return found


def plain(name: str) -> str:
    """A host's name without the user that logs in there."""
    return name.rpartition("@")[2]


def names_of(controller: HostController) -> dict[str, str]:
    """By its plain name, how a host stands in the target; of two that are one host, the one that answers."""
    found: dict[str, str] = {}
    for one in controller.host_states.values():
        if one.lost is None or plain(one.name) not in found:
            found[plain(one.name)] = one.name
    return found


def named(snapshot: Snapshot, host: str) -> Snapshot:
    """A host's snapshot under the name that it has in the target, which may not be the one it has itself."""
    return replace(
        snapshot,
        ranks=tuple(replace(rank, host=host) for rank in snapshot.ranks),
        hosts=tuple(replace(one, name=host) for one in snapshot.hosts),
    )


def nothing_seen(controller: HostController) -> BreakranksError:
    """Why not one host could be looked at."""
    rows = list(reasons(controller))
    message = f"none of the hosts of {controller.plan.name} could be looked at"
    return BreakranksError(
        "\n".join([message, *(f"  {hosts}: {lost.what}" for hosts, lost in rows)]),
        "\n".join(dict.fromkeys(lost.remedy for _, lost in rows if lost.remedy)),
    )


def reasons(controller: HostController) -> Iterator[tuple[str, LostHost]]:
    """Lost hosts, folded by why."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, lost in controller.lost.items():
        # The same reason but for the host's own name is the same reason.
        what, remedy = (text.replace(name, "\0").replace(plain(name), "\0") for text in (lost.what, lost.remedy))
        groups.setdefault((lost.kind, what, remedy), []).append(plain(name))
    for (kind, what, remedy), names in groups.items():
        told = what.replace("\0", fold(names))
        yield fold(names), LostHost(kind=kind, what=told, remedy=remedy.replace("\0", names[0]))


def _failed(controller: HostController, name: str, reply: Reply) -> None:
    what, help = (reply.what, reply.help) if isinstance(reply, RequestFailed) else ("answered what was not asked", "")
    controller.lose(
        name, LostHost(kind="failed", what=what[:_MAX_REASON_CHARACTERS], remedy=help[:_MAX_REASON_CHARACTERS])
    )
