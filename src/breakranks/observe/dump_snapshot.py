"""A folder of flight recorder dumps as a snapshot, in which only the collectives of the ranks are known."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from breakranks import __version__
from breakranks.errors import UsageError
from breakranks.observe.recorder import dump_folder as dumps
from breakranks.observe.recorder.dump_folder import DumpRead, DumpSkipped
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.merge_recorders import RecorderMerger, rebuild
from breakranks.snapshot.model import FORMAT_VERSION, Job, Missing, Problem, Process, Rank, Snapshot, StackTable

_MAX_REASONS = 8
# The clocks of hosts differ, and a rank may wait for a long time before the others reach the call.
_CLOCK_SKEW_SECONDS = 3600.0


def load(path: str) -> Snapshot:
    """Load the dumps below ``path``. Files that are not dumps of this job are left out, and named in ``problems``."""
    return together(path, dumps.read_all(dumps.files(path)))


def together(path: str, answers: Iterable[DumpRead | DumpSkipped]) -> Snapshot:
    """Make a snapshot of files that were read."""
    read: list[DumpRead] = []
    left: list[DumpSkipped] = []
    for answer in answers:
        if isinstance(answer, DumpRead):
            read.append(answer)
        else:
            left.append(answer)
    kept, duplicates = dumps.newest_of_each(read)
    kept, foreign = _of_one_job(kept)
    left += [*duplicates, *foreign]
    if not kept:
        reasons = "\n".join(f"{file.file.path} {file.what}" for file in left[:_MAX_REASONS])
        remedy = next((file.remedy for file in left if file.remedy), "Name a folder with the dumps of only one job.")
        raise UsageError(f"no dump in {path} can be read:\n{reasons}", remedy)
    return _snapshot(path, kept, left)


def _snapshot(path: str, kept: dict[int, DumpRead], left: list[DumpSkipped]) -> Snapshot:
    stacks = StackTable()
    joiner = RecorderMerger(stacks)
    recorders = {}
    for rank, dump in sorted(kept.items()):
        recorder = joiner.add(dump.recorder, dump.operations, dump.groups, dump.frames, dump.stacks)
        recorders[rank] = replace(recorder, time=_written(dump), source=dump.file.path)
    world = RankSet(recorders) | (_world(next(iter(kept.values()))) or RankSet(range(max(recorders) + 1)))
    groups, recorders = rebuild(joiner.table.groups, recorders, world)
    missing = world - RankSet(recorders)
    return Snapshot(
        version=FORMAT_VERSION,
        made_by=f"breakranks {__version__}",
        time=max((recorder.newest for recorder in recorders.values()), default=0.0) or time.time(),
        job=Job(
            key="dumps",
            launcher="dumps",
            world_size=len(world),
            started=min((t.since for r in recorders.values() for t in r.tracks), default=0),
        ),
        ranks=tuple(
            Rank(rank=rank, host="", process=Process(pid=0, parent=0, command=()), recorder=recorder)
            for rank, recorder in recorders.items()
        ),
        frames=tuple(stacks.frames),
        stacks=tuple(stacks.stacks),
        missing=(Missing(ranks=str(missing), reason="no-dump", detail=f"no dump in {path}"),) if missing else (),
        problems=(*_nameless(kept), *(file.problem() for file in left)),
        groups=groups,
        operations=tuple(joiner.table.operations),
    )


def _nameless(kept: dict[int, DumpRead]) -> tuple[Problem, ...]:
    """A problem for calls of groups that old dumps do not name, which therefore cannot be compared."""
    ranks = RankSet(rank for rank, dump in kept.items() if "nameless" in dump.recorder.notes)
    if not ranks:
        return ()
    versions = sorted({kept[rank].recorder.version for rank in ranks})
    return (
        Problem(
            f"dumps of version {', '.join(versions)} do not contain the members of a group: of {ranks_text(ranks)} "
            "only the calls of the default group were read",
            "Newer versions of torch record the members.",
        ),
    )


def _written(dump: DumpRead) -> float:
    """When the dump was written, by its file. A copied file is newer, which only makes waits look longer."""
    return dump.file.modified if dump.file.modified >= dump.recorder.newest else 0.0


def _world(dump: DumpRead) -> RankSet | None:
    """All ranks, from the group that torch creates first."""
    for group in dump.groups:
        if group.name == "0" and group.ranks:
            return RankSet.parse(group.ranks)
    return None


def _of_one_job(kept: dict[int, DumpRead]) -> tuple[dict[int, DumpRead], list[DumpSkipped]]:
    """Leave out dumps of another job than most: those with another world, or that are too old for this job."""
    worlds = Counter(world for dump in kept.values() if (world := _world(dump)) is not None)
    left = []
    if len(worlds) > 1:
        world = max(worlds, key=lambda ranks: (worlds[ranks], max(_newest(kept, ranks))))
        for rank, dump in tuple(kept.items()):
            other = _world(dump)
            if other is not None and other != world:
                left.append(
                    DumpSkipped(dump.file, f"is from another job: its world is ranks {other}, the others' {world}")
                )
                del kept[rank]
    names = Counter((group.name, group.description) for dump in kept.values() for group in dump.groups)
    for rank, dump in tuple(kept.items()):
        for group in dump.groups:
            common = [(count, pair) for pair, count in names.items() if pair[0] == group.name]
            count, pair = max(common)
            if pair[1] != group.description and count > names[group.name, group.description]:
                left.append(
                    DumpSkipped(
                        dump.file, f"is from another job: its group {group.name} is {group.description}, not {pair[1]}"
                    )
                )
                del kept[rank]
                break
    for rank in _left_over(kept):
        what = "is left over from an earlier run: it has the same call numbers, hours earlier"
        left.append(DumpSkipped(kept.pop(rank).file, what))
    return kept, left


def _newest(kept: dict[int, DumpRead], world: RankSet) -> list[float]:
    return [dump.recorder.newest for dump in kept.values() if _world(dump) == world]


def _left_over(kept: dict[int, DumpRead]) -> list[int]:
    """Ranks whose newest call is much older than the oldest call of the newest rank, but has a higher number."""
    if len(kept) < 2:
        return []
    newest = max(kept.values(), key=lambda dump: dump.recorder.newest)
    reference = {newest.groups[track.group].name: track for track in newest.recorder.tracks}
    found = []
    for rank, dump in kept.items():
        for track in dump.recorder.tracks:
            other = reference.get(dump.groups[track.group].name)
            if other is None or track.last is None or not track.last.created or not other.since:
                continue
            if track.last.created + _CLOCK_SKEW_SECONDS < other.since and track.reached >= other.first:
                found.append(rank)
                break
    return found
