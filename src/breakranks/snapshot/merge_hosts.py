"""Merges the snapshots of one job on many hosts, each with its own tables and clock, into one.

The result is what a single host with all the ranks would have seen. The cost is linear in the input: 10,000 hosts of 8
ranks take seconds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

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
    """Switch the garbage collector off. Nothing here makes cycles, and scanning millions of new objects takes five
    times as long."""
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
    """Return one snapshot of what each host saw of a job.

    ``hosts`` are those of the target, lost ones included, with the names in ``Rank.host``. Fields that they lack (CPUs,
    load, kills) are taken from the parts. All times are converted to the clock of the controller. ``job``, ``missing``
    and ``places`` were found before the inspection (:class:`breakranks.jobs.merge_jobs.ClusterJob`), so ranks that were
    not requested are not missing. Without them they are made from the parts.
    """
    by_host = {host.name: host for host in hosts}
    whole = _Whole()
    names = [_name(part) for part in parts]
    for name, part in zip(names, parts, strict=True):
        whole.add(part, _shift(by_host.get(name)))
    first = _first(parts)
    made = job or _job([part.job for part in parts], first, [_shift(by_host.get(name)) for name in names])
    ranks, twice = _numbered(whole.ranks)
    seen = RankSet(rank.rank for rank in ranks)
    world = RankSet.span(0, made.world_size) or seen
    groups, recorders = rebuild(whole.joiner.table.groups, whole.recorders, world)
    kept = _hosts(names, parts, by_host)
    return Snapshot(
        version=FORMAT_VERSION,
        made_by=parts[0].made_by if parts else "breakranks",
        time=max((part.time - _shift(by_host.get(name)) for name, part in zip(names, parts, strict=True)), default=0.0),
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
        launcher=whole.launchers.get(first) if ranks else _living(whole.launchers.values()),
        groups=groups if recorders else (),
        operations=tuple(whole.joiner.table.operations) if recorders else (),
    )


def of_hosts(by_host: Mapping[str, Sequence[Problem]]) -> tuple[Problem, ...]:
    """Return the problems of many hosts, each once, with the names of the hosts if there are several."""
    if len(by_host) < 2:
        return tuple(problem for problems in by_host.values() for problem in problems)
    whose: dict[Problem, list[str]] = {}
    for host, problems in by_host.items():
        for problem in dict.fromkeys(problems):
            whose.setdefault(problem, []).append(host)
    return tuple(
        problem._replace(what=f"{fold(names)}: {problem.what}", hosts=tuple(names)) for problem, names in whose.items()
    )


class _Rows(StackTable):
    """A table that takes whole tables: a frame is looked up once per host, not in every stack."""

    def rows(self, frames: Sequence[Frame], stacks: Sequence[tuple[int, ...]]) -> list[int]:
        """Return the row in this table for each of these stacks."""
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
    """Everything that has been added, in the rows of one set of tables."""

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
        """Add all recorders of a part as one recorder, so that its tables are read once."""
        owners = [(rank.rank, rank.recorder) for rank in part.ranks if rank.recorder is not None]
        if not owners:
            return
        joined = Recorder(
            version="",
            tracks=tuple(track for _, recorder in owners for track in recorder.tracks),
            transfers=tuple(transfer for _, recorder in owners for transfer in recorder.transfers),
        )
        used = _stacks_of(part, joined)
        moved = self.joiner.add(joined, part.operations or _NO_OPERATIONS, _unsettled(part.groups), part.frames, used)
        tracks, transfers = iter(moved.tracks), iter(moved.transfers)
        for rank, recorder in owners:
            whole = replace(
                recorder,
                tracks=tuple(next(tracks) for _ in recorder.tracks),
                transfers=tuple(next(transfers) for _ in recorder.transfers),
            )
            self.recorders.setdefault(rank, _shifted(whole, shift) if shift else whole)


_NO_OPERATIONS = (Operation(""),)


def _stacks_of(part: Snapshot, recorder: Recorder) -> list[tuple[int, ...]]:
    """Return the stacks of the part, with those replaced by empty ones that its recorders do not use."""
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
    """Return the groups without inferred members: one host knew only its own ranks."""
    return [
        group._replace(ranks="", source="config") if group.source in ("seen", "world") else group for group in groups
    ]


class _Move:
    """Converts processes to other rows and another clock. Unchanged ones are returned as they are."""

    def __init__(self, rows: list[int], shift: float) -> None:
        self._rows = rows
        self._shift = shift

    def process(self, process: Process) -> Process:
        if not self._rows and not self._shift:
            return process
        shift = self._shift
        inside = process.inside
        if shift and inside is not None and inside.time:
            inside = replace(inside, time=inside.time - shift)
        return replace(
            process,
            started=process.started - shift if process.started else 0.0,
            samples=tuple(map(self._sample, process.samples)),
            children=tuple(map(self.process, process.children)),
            inside=inside,
        )

    def _sample(self, sample: Sample) -> Sample:
        threads = tuple(map(self._thread, sample.threads)) if self._rows else sample.threads
        return sample._replace(time=sample.time - self._shift, threads=threads)

    def _thread(self, thread: Thread) -> Thread:
        stack, native = self._rows[thread.stack], self._rows[thread.native]
        if stack == thread.stack and native == thread.native:
            return thread
        return thread._replace(stack=stack, native=native)


def _shifted(recorder: Recorder, shift: float) -> Recorder:
    def entry(entry: Entry) -> Entry:
        return entry._replace(created=entry.created - shift) if entry.created else entry

    def track(track: Track) -> Track:
        return track._replace(
            pending=tuple(map(entry, track.pending)),
            last=None if track.last is None else entry(track.last),
            since=track.since - shift if track.since else 0.0,
        )

    def transfer(transfer: Transfer) -> Transfer:
        return transfer._replace(entry=entry(transfer.entry))

    return replace(
        recorder,
        time=recorder.time - shift if recorder.time else 0.0,
        newest=recorder.newest - shift if recorder.newest else 0.0,
        tracks=tuple(map(track, recorder.tracks)),
        transfers=tuple(map(transfer, recorder.transfers)),
    )


def _shift(host: Host | None) -> float:
    """Return what to subtract from the times of a host. A difference below its error counts as 0."""
    return host.clock if host is not None and abs(host.clock) > host.clock_error else 0.0


def _name(part: Snapshot) -> str:
    return part.hosts[0].name if part.hosts else part.ranks[0].host if part.ranks else ""


def _first(parts: Sequence[Snapshot]) -> int:
    """Return the index of the part with the lowest rank: its launcher represents the job."""
    lowest = [min((rank.rank for rank in part.ranks), default=1 << 62) for part in parts]
    return min(range(len(parts)), key=lowest.__getitem__, default=0)


def _living(launchers: Iterable[Process]) -> Process | None:
    """Return a launcher that lives, or else any."""
    return min(launchers, key=lambda launcher: launcher.state in ("Z", "X"), default=None)


def _job(jobs: Sequence[Job], first: int, shifts: Sequence[float]) -> Job:
    started = [job.started - shift for job, shift in zip(jobs, shifts, strict=True) if job.started]
    return replace(
        jobs[first],
        world_size=max(job.world_size for job in jobs),
        started=min(started, default=0.0),
    )


def _numbered(ranks: Sequence[Rank]) -> tuple[list[Rank], list[Problem]]:
    """Return the ranks in order, each once: of two hosts with the same rank, the one with more samples counts."""
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
                f"{what} {left.process.pid}): the one on {kept.host} is used",
                "Find the leftover process: breakranks ps",
            )
        )
    return [found[number] for number in sorted(found)], problems


def _with_recorder(rank: Rank, recorder: Recorder | None) -> Rank:
    return rank if recorder is None else replace(rank, recorder=recorder)


def _hosts(names: Sequence[str], parts: Sequence[Snapshot], by_host: Mapping[str, Host]) -> tuple[Host, ...]:
    """Return the hosts that have part of the job, and those of the target of which nothing is known."""
    known = {name: part.hosts[0] if part.hosts else Host(name=name) for name, part in zip(names, parts, strict=True)}
    found = []
    for name, host in by_host.items():
        if name in known:
            own = known.pop(name)
            found.append(
                replace(
                    host,
                    # It was lost during the inspection: its last samples are kept.
                    state="seen" if host.state == "seen" else "lost",
                    reason=host.reason or host.state.replace("-", " ") if host.state != "seen" else "",
                    cpus=host.cpus or own.cpus,
                    load=host.load or own.load,
                    memory=host.memory or own.memory,
                    oom_kills=host.oom_kills or own.oom_kills,
                    oom_killed=host.oom_killed or own.oom_killed,
                    addresses=host.addresses or own.addresses,
                )
            )
        elif host.state != "seen":
            found.append(host)
    return (*found, *known.values())
