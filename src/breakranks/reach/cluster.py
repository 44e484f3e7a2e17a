"""A job on many hosts, looked at as if it were on one."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from breakranks.errors import BreakranksError, SnapshotError
from breakranks.jobs.across import ClusterJob, join
from breakranks.jobs.find import Found
from breakranks.rankset import RankSet
from breakranks.reach.checking import fault_of
from breakranks.reach.fleet import Fleet
from breakranks.reach.ladder import Climb
from breakranks.reach.messages import Check, Checked, Failed, Find, Jobs, Look, Reply, Sample, Step, Taken
from breakranks.reach.ways import Lost
from breakranks.snapshot.file import unpack
from breakranks.snapshot.merging import merge, no_collection
from breakranks.snapshot.model import Host, Snapshot, only

_ODD = "Is it the same version of breakranks on both sides, and a host that you trust?"
_STEPS = 10
_LONGEST = 500  # characters of a host's own words


def find(fleet: Fleet, hosts: list[str], found: dict[str, Found]) -> None:
    """Ask hosts which jobs they have; what they say goes into ``found``, by the host's plain name."""
    for name, reply in fleet.ask(dict.fromkeys(hosts, Find(0, fleet.plan.slurm)), fleet.deadline):
        if isinstance(reply, Jobs) and (wrong := fault_of(reply.found)):
            fleet.lose(name, Lost(kind="failed", what=wrong, remedy=_ODD))
        elif isinstance(reply, Jobs):
            found[plain(name)] = reply.found
            fleet.stations[name].told = True
        else:
            _failed(fleet, name, reply)


def jobs_of(fleet: Fleet, found: dict[str, Found]) -> tuple[ClusterJob, ...]:
    return join(found, hosts=hosts_of(fleet))


def hosts_of(fleet: Fleet) -> list[Host]:
    """Every host of the target, as it is now."""
    hosts = []
    for one in fleet.stations.values():
        name = plain(one.name)
        if one.lost is not None:
            hosts.append(Host(name, state=one.lost.kind, reason=one.lost.what, remedy=one.lost.remedy))
        elif one.hello is None or not one.told:
            hosts.append(Host(name, state="timed-out", reason="has not answered yet"))
        else:
            addresses = one.hello.addresses
            hosts.append(Host(name, clock=one.clock, clock_error=one.clock_error, addresses=addresses))
    return hosts


class ClusterSession:
    """Looks at one job on all its hosts: what ``reach.local.Session`` is to one."""

    def __init__(
        self,
        fleet: Fleet,
        job: ClusterJob,
        *,
        ranks: RankSet | None = None,
        details: bool = True,
        keep: int = 0,
    ) -> None:
        self._fleet = fleet
        self._job = job
        self._keep = keep
        self._parts: dict[str, Snapshot] = {}
        self._looks: dict[str, Look] = {}
        names = names_of(fleet)
        for host, part in job.parts.items():
            here = None if ranks is None else ranks & RankSet(rank.rank for rank in part.ranks)
            if here is None or here:
                self._looks[names[host]] = Look(part.job.key, None if here is None else str(here), details)
        self._begun: set[str] = set()
        self.sampled = 0
        self.received = 0

    def __enter__(self) -> ClusterSession:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        """One more sample on every host that is still there."""
        plain_one = Sample(0, None, samples, native, recorders, visit, self._keep)
        requests = {
            name: plain_one if name in self._begun else replace(plain_one, look=look)
            for name, look in self._looks.items()
            if self._fleet.stations[name].lost is None
        }
        seconds = self._fleet.longer if native or recorders or visit == "all" else self._fleet.deadline
        with no_collection():
            for name, reply in self._fleet.ask(requests, seconds):
                self._begun.add(name)
                if isinstance(reply, Taken):
                    self._take(name, reply)
                else:
                    _failed(self._fleet, name, reply)
        self.sampled += samples

    def _take(self, name: str, reply: Taken) -> None:
        self.received += len(reply.snapshot)
        try:
            taken = named(unpack(reply.snapshot), plain(name))
            self._parts[name] = only(taken, RankSet(one.rank for one in self._job.parts[plain(name)].ranks))
        except SnapshotError as error:
            lost = Lost(kind="failed", what=f"what it sent {error.message}", remedy=error.help)
            self._fleet.lose(name, lost)

    def snapshot(self, keep: int | None = None) -> Snapshot:
        """Everything seen so far, of all hosts."""
        if not self._parts:
            raise nothing_seen(self._fleet)
        merged = merge(
            list(self._parts.values()),
            hosts=hosts_of(self._fleet),
            job=self._job.job,
            missing=self._job.missing,
            places=self._job.places,
        )
        return replace(merged, target=self._fleet.typed)


def climbs(fleet: Fleet) -> list[Climb]:
    """How far each host goes, those that were not reached included."""
    taken: dict[str, tuple[Step, ...]] = {}
    for name, reply in fleet.ask(dict.fromkeys(fleet.up, Check(0, fleet.plan.slurm)), fleet.longer):
        if isinstance(reply, Checked):
            taken[name] = tuple(
                Step(step.name[:40], step.fine, step.what[:_LONGEST], step.remedy[:_LONGEST])
                for step in reply.steps[:_STEPS]
            )
        else:
            _failed(fleet, name, reply)
    found = []
    for one in fleet.stations.values():
        steps = []
        if one.hello is not None:
            sent = ", our code sent along" if one.hello.shipped else ""
            steps += [Step("log in", True, ""), Step("python", True, f"{one.hello.python}{sent}")]
        if one.lost is not None:
            name = "python" if one.lost.kind == "no-python" else "log in" if one.hello is None else "answer"
            steps.append(Step(name, False, one.lost.what, one.lost.remedy))
        found.append(Climb(plain(one.name), (*steps, *taken.get(one.name, ()))))
    return found


def plain(name: str) -> str:
    """A host's name without the user that logs in there."""
    return name.rpartition("@")[2]


def names_of(fleet: Fleet) -> dict[str, str]:
    """By its plain name, how a host stands in the target; of two that are one host, the one that answers."""
    found: dict[str, str] = {}
    for one in fleet.stations.values():
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


def nothing_seen(fleet: Fleet) -> BreakranksError:
    """Why not one host could be looked at."""
    rows = list(reasons(fleet))
    message = f"none of the hosts of {fleet.plan.name} could be looked at"
    return BreakranksError(
        "\n".join([message, *(f"  {hosts}: {lost.what}" for hosts, lost in rows)]),
        "\n".join(dict.fromkeys(lost.remedy for _, lost in rows if lost.remedy)),
    )


def reasons(fleet: Fleet) -> Iterator[tuple[str, Lost]]:
    """Lost hosts, folded by why."""
    from breakranks.snapshot.nodes import fold

    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, lost in fleet.lost.items():
        # The same reason but for the host's own name is the same reason.
        what, remedy = (text.replace(name, "\0").replace(plain(name), "\0") for text in (lost.what, lost.remedy))
        groups.setdefault((lost.kind, what, remedy), []).append(plain(name))
    for (kind, what, remedy), names in groups.items():
        told = what.replace("\0", fold(names))
        yield fold(names), Lost(kind=kind, what=told, remedy=remedy.replace("\0", names[0]))


def _failed(fleet: Fleet, name: str, reply: Reply) -> None:
    what, help = (reply.what, reply.help) if isinstance(reply, Failed) else ("answered what was not asked", "")
    fleet.lose(name, Lost(kind="failed", what=what[:_LONGEST], remedy=help[:_LONGEST]))
