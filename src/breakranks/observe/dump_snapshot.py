"""A folder of flight recorder dumps as a snapshot: ranks of which only their collectives are known."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from breakranks import __version__
from breakranks.errors import UsageError
from breakranks.observe.recorder import dump_folder as dumps
from breakranks.observe.recorder.dump_folder import Left, Read
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.merge_recorders import RecorderMerger, rebuild
from breakranks.snapshot.model import FORMAT_VERSION, Job, Missing, Problem, Process, Rank, Snapshot, StackTable

_MANY = 8
# Seconds. Clocks of hosts differ, and a rank may wait for long before the others come.
_CLOCK_SKEW_SECONDS = 3600.0


def load(path: str) -> Snapshot:
    """The dumps below ``path``. Files that are not dumps of this job are named in ``problems`` and left out."""
    return together(path, dumps.read_all(dumps.files(path)))


def together(path: str, answers: Iterable[Read | Left]) -> Snapshot:
    """The same of files that were read."""
    read: list[Read] = []
    left: list[Left] = []
    for one in answers:
        if isinstance(one, Read):
            read.append(one)
        else:
            left.append(one)
    kept, doubles = dumps.newest_of_each(read)
    kept, strangers = _of_one_job(kept)
    left += [*doubles, *strangers]
    if not kept:
        reasons = "\n".join(f"{one.file.path} {one.what}" for one in left[:_MANY])
        remedy = next((one.remedy for one in left if one.remedy), "Name a folder that has the dumps of one job alone.")
        raise UsageError(f"no dump in {path} can be read:\n{reasons}", remedy)
    return _snapshot(path, kept, left)


def _snapshot(path: str, kept: dict[int, Read], left: list[Left]) -> Snapshot:
    stacks = StackTable()
    joiner = RecorderMerger(stacks)
    recorders = {}
    for rank, one in sorted(kept.items()):
        recorder = joiner.add(one.recorder, one.operations, one.groups, one.frames, one.stacks)
        recorders[rank] = replace(recorder, time=_written(one), source=one.file.path)
    world = RankSet(recorders) | (_world(next(iter(kept.values()))) or RankSet(range(max(recorders) + 1)))
    groups, recorders = rebuild(joiner.table.groups, recorders, world)
    missing = world - RankSet(recorders)
    return Snapshot(
        version=FORMAT_VERSION,
        made_by=f"breakranks {__version__}",
        time=max((one.newest for one in recorders.values()), default=0.0) or time.time(),
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
        missing=(Missing(str(missing), "no-dump", f"no dump of it in {path}"),) if missing else (),
        problems=(*_nameless(kept), *(one.problem() for one in left)),
        groups=groups,
        operations=tuple(joiner.table.operations),
    )


def _nameless(kept: dict[int, Read]) -> tuple[Problem, ...]:
    """Calls of groups that old dumps do not name: they cannot be compared, and saying nothing would be a lie."""
    ranks = RankSet(rank for rank, one in kept.items() if "nameless" in one.recorder.notes)
    if not ranks:
        return ()
    versions = sorted({kept[rank].recorder.version for rank in ranks})
    return (
        Problem(
            f"dumps of version {', '.join(versions)} do not say who is in a group: of {ranks_text(ranks)} only the "
            "calls of the world's group were read",
            "A newer torch records it.",
        ),
    )


def _written(one: Read) -> float:
    """When the dump was made, if its file still tells: a copy is newer, and only makes waits look longer."""
    return one.file.modified if one.file.modified >= one.recorder.newest else 0.0


def _world(one: Read) -> RankSet | None:
    """Everyone, by the group that torch makes first."""
    for group in one.groups:
        if group.name == "0" and group.ranks:
            return RankSet.parse(group.ranks)
    return None


def _of_one_job(kept: dict[int, Read]) -> tuple[dict[int, Read], list[Left]]:
    """Leave out what is of another job than most: another world, or a past that cannot be this job's."""
    worlds = Counter(world for one in kept.values() if (world := _world(one)) is not None)
    left = []
    if len(worlds) > 1:
        world = max(worlds, key=lambda one: (worlds[one], max(_newest(kept, one))))
        for rank, one in tuple(kept.items()):
            other = _world(one)
            if other is not None and other != world:
                left.append(Left(one.file, f"is of another job: its world is ranks {other}, the others' {world}"))
                del kept[rank]
    names = Counter((group.name, group.description) for one in kept.values() for group in one.groups)
    for rank, one in tuple(kept.items()):
        for group in one.groups:
            common = [(count, pair) for pair, count in names.items() if pair[0] == group.name]
            count, pair = max(common)
            if pair[1] != group.description and count > names[group.name, group.description]:
                left.append(
                    Left(one.file, f"is of another job: its group {group.name} is {group.description}, not {pair[1]}")
                )
                del kept[rank]
                break
    for rank in _left_over(kept):
        left.append(Left(kept.pop(rank).file, "is left over from an earlier run: it counts as far, hours before"))
    return kept, left


def _newest(kept: dict[int, Read], world: RankSet) -> list[float]:
    return [one.recorder.newest for one in kept.values() if _world(one) == world]


def _left_over(kept: dict[int, Read]) -> list[int]:
    """Ranks whose newest call came long before the newest rank's oldest, and yet has a higher number."""
    if len(kept) < 2:
        return []
    newest = max(kept.values(), key=lambda one: one.recorder.newest)
    reference = {newest.groups[track.group].name: track for track in newest.recorder.tracks}
    found = []
    for rank, one in kept.items():
        for track in one.recorder.tracks:
            other = reference.get(one.groups[track.group].name)
            if other is None or track.last is None or not track.last.created or not other.since:
                continue
            if track.last.created + _CLOCK_SKEW_SECONDS < other.since and track.reached >= other.first:
                found.append(rank)
                break
    return found
