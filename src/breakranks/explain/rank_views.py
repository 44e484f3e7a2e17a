"""What each rank of a snapshot does, and where: its process, its host, the locks that it waits for."""

from __future__ import annotations

from typing import NamedTuple

from breakranks.explain import wait_chains
from breakranks.explain.activity import ActivityReader
from breakranks.explain.finding_parts import Subject
from breakranks.explain.frame_meanings import PEER, FrameTable
from breakranks.explain.process_view import ProcessView, evidence_key, inspect_process
from breakranks.rankset import RankSet
from breakranks.snapshot.debugger_threads import without_agents
from breakranks.snapshot.model import FileLock, Process, Rank, Snapshot, family
from breakranks.snapshot.unread_samples import without_unread_samples

_SPAN_SECONDS = 0.4
_IDLE_SHARE = 0.05
# Folders that are local to each host.
_LOCAL = ("/tmp/", "/var/", "/dev/", "/run/", "/proc/", "/sys/")


class JobSamples(NamedTuple):
    """The samples of a job: the largest number that a rank has, and the time of the newest."""

    number: int
    newest: float


class RankViews:
    """A view of every rank, and the facts about ranks that do not depend on other ranks."""

    def __init__(self, snapshot: Snapshot, table: FrameTable | None = None) -> None:
        snapshot = without_unread_samples(without_agents(snapshot))
        self.snapshot = snapshot
        self.reader = ActivityReader(snapshot, table)
        samples = [rank.process.samples for rank in snapshot.ranks if rank.process.samples]
        newest = max((some[-1].time for some in samples), default=0.0)
        self.sampled = JobSamples(number=max(map(len, samples), default=0), newest=newest)
        self.ranks: dict[int, Rank] = {rank.rank: rank for rank in snapshot.ranks}
        self.reporting = wait_chains.reporting_processes(snapshot)
        self.views = _views(snapshot, self.reader)
        self.seen = RankSet(self.ranks)
        self.gone = RankSet.parse(",".join(m.ranks for m in snapshot.missing if m.reason in ("exited", "absent")))
        self.unreached = RankSet.parse(",".join(m.ranks for m in snapshot.missing if m.reason == "unreachable"))
        self.unreached -= self.seen
        self.several = snapshot.spans_hosts
        self.unseen = RankSet.parse(",".join(m.ranks for m in snapshot.missing)) - self.seen
        # A pid is unique on one host only.
        self.by_pid = {
            (rank.host, process.pid): rank.rank
            for rank in snapshot.ranks
            for process in family(rank.process)
            if process.pid
        }
        self._openers: dict[str, int | None] = {}
        self._on: dict[str, list[int]] | None = None
        self._owners = {id(process): rank.rank for rank in snapshot.ranks for process in family(rank.process)}

    @property
    def world(self) -> RankSet:
        return self.seen | self.gone | self.unreached

    def rank_of(self, process: Process) -> int | None:
        """Return the rank that a process of this snapshot is, or works for."""
        return self._owners.get(id(process))

    def host_of(self, process: Process) -> str:
        """Return the host of a process if the job has several hosts, else an empty text."""
        rank = self.rank_of(process)
        return self.ranks[rank].host if rank is not None and self.several else ""

    def hosts_of(self, ranks: RankSet) -> list[str]:
        """Return the hosts of these ranks, in the order of ranks."""
        if len(ranks) * 4 < len(self.ranks):
            return list(dict.fromkeys(self.ranks[rank].host for rank in ranks if rank in self.ranks))
        return list(dict.fromkeys(rank.host for rank in self.snapshot.ranks if rank.rank in ranks))

    def ranks_on(self, host: str) -> list[int]:
        """Return all ranks of a host that were sampled."""
        if self._on is None:
            self._on = {}
            for rank in self.snapshot.ranks:
                self._on.setdefault(rank.host, []).append(rank.rank)
        return self._on.get(host, [])

    def last_seen(self, rank: int) -> float:
        """Return the time of the last sample of a rank: hosts do not take their samples at the same time."""
        samples = self.ranks[rank].process.samples
        return samples[-1].time if samples else self.snapshot.time

    def view_of(self, ranks: RankSet) -> ProcessView:
        return self.views[ranks.first]

    def subject(self, ranks: RankSet) -> Subject:
        """Return these ranks as the subject of a sentence, with the pid of a single rank, and hosts if the job has
        several."""
        if len(ranks) != 1:
            hosts = self.hosts_of(ranks) if self.several and ranks != self.seen else []
            whole = len(hosts) == 1 and len(ranks) == len(self.ranks_on(hosts[0]))
            return Subject(ranks=str(ranks), hosts=tuple(hosts), whole_host=whole)
        rank = self.ranks.get(ranks.first)
        if rank is None:
            return Subject(ranks=str(ranks))
        return Subject(ranks=str(ranks), host=rank.host if self.several else "", pid=rank.process.pid)

    def stands(self, ranks: RankSet) -> float:
        """Return for how many seconds at least one of these ranks has been where it is."""
        return max((self.views[rank].stands for rank in ranks if rank in self.views), default=0.0)

    def asleep(self, ranks: RankSet | None = None) -> bool:
        """Whether no process of these ranks did anything between the first sample and the last.

        Then only a timer, a GPU or something outside the job can change its state.
        """
        chosen = self.seen if ranks is None else ranks
        if any(self.views[rank].activity.word == "gpu-wait" for rank in chosen):
            return False
        return all(_is_idle(process) for rank in chosen for process in family(self.ranks[rank].process))

    def lock_holder(self, view: ProcessView) -> tuple[FileLock | None, int | None]:
        """Return the lock that a rank waits for, and the rank that holds it, if one does."""
        if view.activity.word != "file-lock":
            return None, None
        for lock in view.process.locks:
            if lock.kind == "gone":
                continue
            mine = self.rank_of(view.process)
            host = self.ranks[mine].host if mine is not None else ""
            if lock.holder:
                holder = self.by_pid.get((host, lock.holder))
            else:
                holder = self._holds_elsewhere(lock.path, host)
            return lock, holder if holder != mine else None
        return None, None

    def _holds_elsewhere(self, path: str, host: str) -> int | None:
        """Return the rank of another host that has a file open on a shared disk."""
        if not self.several or is_local(path):
            return None
        if path not in self._openers:
            self._openers[path] = next(
                (
                    rank.rank
                    for rank in self.snapshot.ranks
                    if rank.host != host
                    for process in family(rank.process)
                    if any(file.path == path for file in process.files)
                ),
                None,
            )
        return self._openers[path]


def is_local(path: str) -> bool:
    """Whether each host has its own file of this name."""
    return path.startswith(_LOCAL)


def _is_idle(process: Process) -> bool:
    """Whether a process used no more CPU than the thread of gloo that polls a hundred times a second. This takes two
    samples."""
    samples = process.samples
    if len(samples) < 2:
        return process.state in ("T", "t", "Z", "X")
    span = samples[-1].time - samples[0].time
    return span >= _SPAN_SECONDS and samples[-1].cpu - samples[0].cpu <= max(0.02, _IDLE_SHARE * span)


def _views(snapshot: Snapshot, reader: ActivityReader) -> dict[int, ProcessView]:
    """Return the view of every rank. Ranks with the same evidence share one: the cost of explaining grows with the
    number of different stacks, not with ranks."""
    known: dict[object, ProcessView] = {}
    keys: dict[int, object] = {}
    for rank in snapshot.ranks:
        # The holder of a lock is a pid, which is unique on one host only.
        key: object = (evidence_key(rank.process), rank.host if rank.process.locks else "")
        keys[rank.rank] = key
        if key not in known:
            known[key] = inspect_process(snapshot, reader, rank.process)
    # If some ranks make their collectives in a thread of their own, that thread matters in the other ranks too.
    names = frozenset(
        view.thread.name
        for view in known.values()
        if view.thread is not None and view.via is not None and view.activity.word in PEER
    )
    if names:
        for key, view in known.items():
            if view.activity.word not in PEER:
                known[key] = inspect_process(snapshot, reader, view.process, names)
    return {rank: known[key] for rank, key in keys.items()}
