"""The snapshots of one job on many hosts, each with tables and a clock of its own, into one.

The result is what one host would have seen that had all the ranks. The cost grows with what is merged, never with
its square: 10,000 hosts of 8 ranks take seconds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from breakranks.rankset import RankSet
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.merge_recorders import RecorderMerger, rebuild
from breakranks.snapshot.model import (
    FORMAT_VERSION,
    Frame,
    Host,
    Job,
    Missing,
    Problem,
    Process,
    Rank,
    Sample,
    Snapshot,
    StackTable,
    Thread,
)
from breakranks.snapshot.recorder_tables import Entry, Group, Operation, Recorder, Track, Transfer
from breakranks.snapshot.unseen_ranks import missing_of, missing_since


@contextmanager
def no_collection() -> Iterator[None]:
    """Nothing here makes cycles, and going through millions of new objects for some takes five times the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@no_collection()
def merge(
    parts: Sequence[Snapshot],
    *,
    hosts: Sequence[Host],
    job: Job | None = None,
    missing: Sequence[Missing] | None = None,
    places: Mapping[int, str] | None = None,
) -> Snapshot:
    """One snapshot of what each host saw of a job.

    ``hosts`` are those of the target, lost ones too, by the names that the ranks' ``host`` has; what they do not say
    of themselves (CPUs, load, kills) is taken from the part. All times become the controller's. ``job``, ``missing``
    and ``places`` are what was found before anything was looked at (:class:`breakranks.jobs.merge_jobs.ClusterJob`):
    then ranks that nobody asked for are not missing. Without them they are made from the parts'.
    """
    told = {host.name: host for host in hosts}
    whole = _Whole()
    names = [_name(part) for part in parts]
    for name, part in zip(names, parts, strict=True):
        whole.add(part, _shift(told.get(name)))
    first = _first(parts)
    made = job or _job([part.job for part in parts], first, [_shift(told.get(name)) for name in names])
    ranks, twice = _numbered(whole.ranks)
    seen = RankSet(rank.rank for rank in ranks)
    world = RankSet.span(0, made.world_size) or seen
    groups, recorders = rebuild(whole.joiner.table.groups, whole.recorders, world)
    kept = _hosts(names, parts, told)
    return Snapshot(
        version=FORMAT_VERSION,
        made_by=parts[0].made_by if parts else "breakranks",
        time=max((part.time - _shift(told.get(name)) for name, part in zip(names, parts, strict=True)), default=0.0),
        job=made,
        ranks=tuple(_with_recorder(rank, recorders.get(rank.rank)) for rank in ranks),
        frames=tuple(whole.table.frames),
        stacks=tuple(whole.table.stacks),
        hosts=kept,
        missing=missing_of(
            [(name, part.missing) for name, part in zip(names, parts, strict=True)], seen, made.world_size, kept
        )
        if missing is None
        else missing_since(missing, places or {}, seen, {name for name in names if name}, kept),
        problems=(*twice, *of_hosts({name: part.problems for name, part in zip(names, parts, strict=True)})),
        interval=max((part.interval for part in parts), default=0.0),
        native=any(part.native for part in parts),
        launcher=whole.launchers.get(first),
        groups=groups if recorders else (),
        operations=tuple(whole.joiner.table.operations) if recorders else (),
    )


def of_hosts(told: Mapping[str, Sequence[Problem]]) -> tuple[Problem, ...]:
    """The problems of many hosts, each once, with the hosts that have it where there are several."""
    if len(told) < 2:
        return tuple(problem for problems in told.values() for problem in problems)
    whose: dict[Problem, list[str]] = {}
    for host, problems in told.items():
        for problem in dict.fromkeys(problems):
            whose.setdefault(problem, []).append(host)
    return tuple(Problem(f"{fold(names)}: {one.what}", one.remedy) for one, names in whose.items())


class _Rows(StackTable):
    """A table that takes whole tables: a frame of a host's is looked up once, not in every stack."""

    def rows(self, frames: Sequence[Frame], stacks: Sequence[tuple[int, ...]]) -> list[int]:
        """The row here of each of these stacks."""
        known = []
        for frame in frames:
            row = self._frame_row.get(frame)
            if row is None:
                row = self._frame_row[frame] = len(self.frames)
                self.frames.append(frame)
            known.append(row)
        found = []
        for stack in stacks:
            key = tuple([known[i] for i in stack])
            row = self._stack_row.get(key)
            if row is None:
                row = self._stack_row[key] = len(self.stacks)
                self.stacks.append(key)
            found.append(row)
        return found


class _Whole:
    """Everything that has been added so far, in the rows of one set of tables."""

    def __init__(self) -> None:
        self.table = _Rows()
        self.joiner = RecorderMerger(self.table)
        self.ranks: list[Rank] = []
        self.recorders: dict[int, Recorder] = {}
        self.launchers: dict[int, Process] = {}
        self._parts = 0

    def add(self, part: Snapshot, shift: float) -> None:
        rows = self.table.rows(part.frames, part.stacks)
        same = all(row == index for index, row in enumerate(rows))
        move = _Move([] if same else rows, shift)
        for rank in part.ranks:
            self.ranks.append(replace(rank, process=move.process(rank.process), recorder=None))
        self._add_recorders(part, shift)
        if part.launcher is not None:
            self.launchers[self._parts] = move.process(part.launcher)
        self._parts += 1

    def _add_recorders(self, part: Snapshot, shift: float) -> None:
        """All recorders of a part at once, as if they were one: its tables are gone through once."""
        owners = [(rank.rank, rank.recorder) for rank in part.ranks if rank.recorder is not None]
        if not owners:
            return
        joined = Recorder(
            version="",
            tracks=tuple(track for _, one in owners for track in one.tracks),
            transfers=tuple(transfer for _, one in owners for transfer in one.transfers),
        )
        used = _stacks_of(part, joined)
        moved = self.joiner.add(joined, part.operations or _NO_OPERATIONS, _unsettled(part.groups), part.frames, used)
        tracks, transfers = iter(moved.tracks), iter(moved.transfers)
        for rank, one in owners:
            whole = replace(
                one,
                tracks=tuple(next(tracks) for _ in one.tracks),
                transfers=tuple(next(transfers) for _ in one.transfers),
            )
            self.recorders.setdefault(rank, _shifted(whole, shift) if shift else whole)


_NO_OPERATIONS = (Operation(""),)


def _stacks_of(part: Snapshot, recorder: Recorder) -> list[tuple[int, ...]]:
    """The part's stacks, with those empty that no entry of its recorders stands on."""
    used = {entry.stack for entry in _entries(recorder)}
    return [stack if row in used else () for row, stack in enumerate(part.stacks)]


def _entries(recorder: Recorder) -> Iterator[Entry]:
    for track in recorder.tracks:
        yield from track.pending
        if track.last is not None:
            yield track.last
    for transfer in recorder.transfers:
        yield transfer.entry


def _unsettled(groups: Sequence[Group]) -> list[Group]:
    """Groups without the members that were only worked out: one host knew its own ranks alone."""
    return [replace(one, ranks="", source="config") if one.source in ("seen", "world") else one for one in groups]


class _Move:
    """Brings processes to other rows and another clock; leaves them alone where nothing changes."""

    def __init__(self, rows: list[int], shift: float) -> None:
        self._rows = rows
        self._shift = shift

    def process(self, one: Process) -> Process:
        if not self._rows and not self._shift:
            return one
        shift = self._shift
        inside = one.inside
        if shift and inside is not None and inside.time:
            inside = replace(inside, time=inside.time - shift)
        return replace(
            one,
            started=one.started - shift if one.started else 0.0,
            samples=tuple(map(self._sample, one.samples)),
            children=tuple(map(self.process, one.children)),
            inside=inside,
        )

    def _sample(self, one: Sample) -> Sample:
        threads = tuple(map(self._thread, one.threads)) if self._rows else one.threads
        return replace(one, time=one.time - self._shift, threads=threads)

    def _thread(self, one: Thread) -> Thread:
        stack, native = self._rows[one.stack], self._rows[one.native]
        if stack == one.stack and native == one.native:
            return one
        return replace(one, stack=stack, native=native)


def _shifted(recorder: Recorder, shift: float) -> Recorder:
    def entry(one: Entry) -> Entry:
        return replace(one, created=one.created - shift) if one.created else one

    def track(one: Track) -> Track:
        return replace(
            one,
            pending=tuple(map(entry, one.pending)),
            last=None if one.last is None else entry(one.last),
            since=one.since - shift if one.since else 0.0,
        )

    def transfer(one: Transfer) -> Transfer:
        return replace(one, entry=entry(one.entry))

    return replace(
        recorder,
        time=recorder.time - shift if recorder.time else 0.0,
        newest=recorder.newest - shift if recorder.newest else 0.0,
        tracks=tuple(map(track, recorder.tracks)),
        transfers=tuple(map(transfer, recorder.transfers)),
    )


def _shift(host: Host | None) -> float:
    """What to take from a host's times. A difference that is smaller than its error is none."""
    return host.clock if host is not None and abs(host.clock) > host.clock_error else 0.0


def _name(part: Snapshot) -> str:
    return part.hosts[0].name if part.hosts else part.ranks[0].host if part.ranks else ""


def _first(parts: Sequence[Snapshot]) -> int:
    """The part with the lowest rank: its launcher started the job, or stands for those that did."""
    lowest = [min((rank.rank for rank in part.ranks), default=1 << 62) for part in parts]
    return min(range(len(parts)), key=lowest.__getitem__, default=0)


def _job(jobs: Sequence[Job], first: int, shifts: Sequence[float]) -> Job:
    started = [one.started - shift for one, shift in zip(jobs, shifts, strict=True) if one.started]
    return replace(
        jobs[first],
        world_size=max(one.world_size for one in jobs),
        started=min(started, default=0.0),
    )


def _numbered(ranks: Sequence[Rank]) -> tuple[list[Rank], list[Problem]]:
    """The ranks in order, each once: of two hosts that claim the same the one that was looked at more."""
    found: dict[int, Rank] = {}
    problems = []
    for rank in ranks:
        other = found.setdefault(rank.rank, rank)
        if other is rank:
            continue
        kept, left = (rank, other) if len(rank.process.samples) > len(other.process.samples) else (other, rank)
        found[rank.rank] = kept
        what = f"rank {rank.rank} is on {kept.host} (pid {kept.process.pid}) and on {left.host} (pid"
        problems.append(
            Problem(
                f"{what} {left.process.pid}): {kept.host}'s counts", "See which of the two is left over: breakranks ps"
            )
        )
    return [found[number] for number in sorted(found)], problems


def _with_recorder(rank: Rank, recorder: Recorder | None) -> Rank:
    return rank if recorder is None else replace(rank, recorder=recorder)


def _hosts(names: Sequence[str], parts: Sequence[Snapshot], told: Mapping[str, Host]) -> tuple[Host, ...]:
    """The hosts that have part of the job, and those of the target that nobody knows anything of."""
    known = {name: part.hosts[0] if part.hosts else Host(name=name) for name, part in zip(names, parts, strict=True)}
    found = []
    for name, host in told.items():
        if name in known:
            own = known.pop(name)
            found.append(
                replace(
                    host,
                    # It was looked at, and then no more: what was seen last stands.
                    state="seen" if host.state == "seen" else "lost",
                    reason=host.reason or host.state.replace("-", " ") if host.state != "seen" else "",
                    cpus=host.cpus or own.cpus,
                    load=host.load or own.load,
                    memory=host.memory or own.memory,
                    oom_kills=host.oom_kills or own.oom_kills,
                    addresses=host.addresses or own.addresses,
                )
            )
        elif host.state != "seen":
            found.append(host)
    return (*found, *known.values())
