"""What shows that ranks make progress: marks of each process in one look, and what differs between two looks.

A mark is evidence from the rank itself: the calls in its flight recorder, the counters of its loops, the functions that
it is in, the bytes that it has moved, the CPU time that it has used. Waiting ranks wake up, poll and print; none of
that is progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from breakranks.explain.diagnosis import Diagnosis, RankClass
from breakranks.explain.frame_meanings import PEER
from breakranks.rankset import RankSet
from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.debugger_threads import before_agent
from breakranks.snapshot.model import PROGRESS, Process, Rank, Sample, Snapshot, Thread, family

# Read and written between the first two samples of a look. A progress bar or a heartbeat writes a line; data loaders
# and checkpoints move more.
_LOOK_BYTES = 1 << 14
# Between two looks, in which the process has also answered breakranks with the content of its flight recorder.
_BETWEEN_BYTES = 1 << 23
# The share of a CPU from which a process counts as busy. A loop that polls uses less.
BUSY_SHARE = 0.2
STILL_SHARE = 0.03
# What a thread does while its CPU time is no sign of work: it spins until something else happens.
_SPINS_OR_WAITS = PEER | {"sleep", "thread-wait", "idle", "event-loop", "exit", "prompt", "held", "gil-wait"}
_MAX_STACKS = 4096  # of one process that are remembered; more are taken for progress
_LINES_OF_LOOP = 2
_INTERPRETER = ("python", "libpython", "libc.so", "libc-", "ld-linux", "libpthread", "[vdso]")

_DEAD_STATES = ("Z", "X", "")

Place = tuple[str, int]  # host and pid
Functions = tuple[tuple[str, str], ...]


class ProcessMarks(NamedTuple):
    """The marks of one process in one look. ``functions`` are those of its main thread, in every sample of the look.
    ``cpu`` and ``bytes`` only grow; ``look_bytes`` are those in the look. ``helps``: it is a helper of a rank.
    ``activity`` is what its rank does."""

    started: float = 0.0
    calls: Mapping[object, object] = {}
    counters: Mapping[object, object] = {}
    functions: frozenset[Functions] = frozenset()
    bytes: int = 0
    look_bytes: int = 0
    cpu: float = 0.0
    time: float = 0.0
    rank: int = 0
    helps: bool = False
    activity: str = ""
    dead: bool = False


class LookMarks(NamedTuple):
    """The marks of all processes of a job in one look. ``woken`` are ranks that waited for other ranks, and were seen
    to return and wait again."""

    processes: Mapping[Place, ProcessMarks]
    woken: RankSet = RankSet()


class Progress(NamedTuple):
    """What has moved between two looks, with the ranks in which it did.

    ``calls`` (of the flight recorder), ``counter`` (of a loop), ``bytes``, ``functions``, ``woken``; ``processes`` and
    ``ended``: ranks were started or have ended; and what alone proves no progress: ``cpu``, ``little cpu``.
    """

    found: Mapping[str, RankSet] = {}

    @property
    def sure(self) -> frozenset[str]:
        return frozenset(self.found) - {"cpu", "little cpu"}

    @property
    def busy(self) -> RankSet:
        """The ranks that used a CPU, themselves or with their helpers."""
        return self.found.get("cpu", RankSet())


def marks_of(snapshot: Snapshot, newest: Diagnosis, samples: int) -> LookMarks:
    """Return the marks of a look, which took the last ``samples`` samples. ``newest`` is their diagnosis."""
    classes = {rank: found for found in newest.classes for rank in RankSet.parse(found.ranks)}
    processes: dict[Place, ProcessMarks] = {}
    for rank in snapshot.ranks:
        found = classes.get(rank.rank)
        for process in family(rank.process):
            helps = process is not rank.process
            processes[rank.host, process.pid] = _process_marks(snapshot, rank, process, samples, helps, found)
    if not snapshot.ranks and snapshot.launcher is not None:
        launcher = Rank(rank=-1, host="", process=snapshot.launcher)
        processes["", launcher.process.pid] = _process_marks(snapshot, launcher, launcher.process, samples, False, None)
    woken = RankSet(rank for rank, found in classes.items() if found.moving and found.activity in PEER)
    return LookMarks(processes, woken)


def _process_marks(
    snapshot: Snapshot, rank: Rank, process: Process, samples: int, helps: bool, found: RankClass | None
) -> ProcessMarks:
    last = process.samples[-1] if process.samples else None
    stacks = [before_agent(snapshot.stack(thread.stack)) for thread in _main_threads(process, samples)]
    return ProcessMarks(
        started=process.started,
        calls={} if helps else _calls(snapshot, rank),
        counters=_counters(process),
        functions=frozenset(tuple((frame.function, frame.file) for frame in stack) for stack in stacks if stack),
        bytes=_bytes(last) if last is not None else 0,
        look_bytes=_look_bytes(process, samples),
        cpu=last.cpu if last is not None else 0.0,
        time=last.time if last is not None else 0.0,
        rank=rank.rank,
        helps=helps,
        activity=found.activity if found is not None else "",
        dead=process.state in _DEAD_STATES,
    )


def _bytes(sample: Sample) -> int:
    return sample.read_bytes + sample.write_bytes


def _look_bytes(process: Process, samples: int) -> int:
    """Return the bytes between the first two samples of a look: later, the process also answers breakranks."""
    first, second, *_ = [*map(_bytes, process.samples[-samples:]), 0, 0]
    return second - first if min(samples, len(process.samples)) > 1 else 0


def _main_threads(process: Process, samples: int) -> Iterator[Thread]:
    for sample in process.samples[-samples:]:
        if sample.threads:
            yield sample.threads[0]


def _calls(snapshot: Snapshot, rank: Rank) -> dict[object, object]:
    """Return the newest recorded call and the newest completed one, of each group and of all transfers."""
    if rank.recorder is None:
        return {}
    calls: dict[object, object] = {}
    for track in rank.recorder.tracks:
        calls[snapshot.groups[track.group][:3]] = (track.reached, track.completed)
    newest = [track.last.record for track in rank.recorder.tracks if track.last is not None]
    newest += [transfer.entry.record for transfer in rank.recorder.transfers]
    calls["newest"] = (max(newest, default=0), len(rank.recorder.transfers))
    return calls


def _counters(process: Process) -> dict[object, object]:
    """Return the counters of the loops of the main thread, and the batch and sample that a data loader is at."""
    inside = process.inside
    if inside is None:
        return {}
    found: dict[object, object] = {
        (loop.file, loop.function, loop.names): loop.values for loop in inside.loops if loop.tid == process.pid
    }
    if inside.loader is not None:
        found["batch"] = inside.loader.batch
    if inside.item is not None:
        found["sample"] = (inside.item.batch, inside.item.sample)
    return found


class ProgressMonitor:
    """Compares each look with the one before. Functions in which a process has been before are no progress: a loop
    is seen in each of its own sooner or later."""

    def __init__(self) -> None:
        self._last: LookMarks | None = None
        self._seen: dict[Place, set[Functions]] = {}
        self._places: dict[int, tuple[Place, float]] = {}  # by rank: its newest process, and when that started

    def moved(self, look: LookMarks) -> Progress:
        """Return what has moved since the look before, and remember this one. The first look shows no progress."""
        before, self._last = self._last, look
        found: dict[str, RankSet] = {}
        started = self._started(look)
        if before is not None and started:
            found["processes"] = started
        elif before is not None:
            for place, marks in look.processes.items():
                for what in self._of(place, marks, before.processes.get(place)):
                    found[what] = found.get(what, RankSet()) | RankSet([marks.rank] if marks.rank >= 0 else [])
            if look.woken:
                found["woken"] = look.woken
        if not found.keys().isdisjoint(("processes", "calls", "counter")):
            self._seen.clear()
        for place, marks in look.processes.items():
            seen = self._seen.setdefault(place, set())
            if len(seen) < _MAX_STACKS:
                seen |= marks.functions
        return Progress(found)

    def _started(self, look: LookMarks) -> RankSet:
        """Return the ranks that have another process than before. A rank that is not seen any more shows nothing: its
        host may be lost for a while."""
        places = {marks.rank: (place, marks.started) for place, marks in look.processes.items() if not marks.helps}
        other = RankSet(
            rank
            for rank, (place, at) in places.items()
            if rank >= 0 and not ((known := self._places.get(rank)) and known[0] == place and abs(known[1] - at) < 1)
        )
        self._places |= places
        return other

    def _of(self, place: Place, marks: ProcessMarks, before: ProcessMarks | None) -> Iterator[str]:
        """Yield what has moved in one process."""
        if before is None:
            return  # a new helper is progress only once it works
        if marks.dead and not before.dead and not marks.helps:
            yield "ended"
        if _differ(before.calls, marks.calls):
            yield "calls"
        if _differ(before.counters, marks.counters):
            yield "counter"
        if marks.look_bytes >= _LOOK_BYTES or marks.bytes - before.bytes >= _BETWEEN_BYTES:
            yield "bytes"
        if marks.activity in _SPINS_OR_WAITS and not marks.helps:
            return
        if place in self._seen and not marks.functions <= self._seen[place]:
            yield "functions"
        share = _share(before, marks)
        if share >= BUSY_SHARE:
            yield "cpu"
        elif share >= STILL_SHARE:
            yield "little cpu"


def _differ(before: Mapping[object, object], now: Mapping[object, object]) -> bool:
    """Whether a mark that both looks have is another. One that could not be read shows nothing."""
    return any(before[key] != value for key, value in now.items() if key in before)


def _share(before: ProcessMarks, now: ProcessMarks) -> float:
    """Return the share of a CPU that a process used between two looks."""
    return (now.cpu - before.cpu) / (now.time - before.time) if now.time > before.time else 0.0


def _is_installed(file: str) -> bool:
    """Whether code is installed, and not part of Python."""
    return not is_own(file) and "-packages/" in file


def may_spin(snapshot: Snapshot, culprits: RankSet) -> bool:
    """Whether these ranks were seen at more than one line, never in an installed package, and with the same values:
    they may be in a loop that changes nothing."""
    processes = [rank.process for rank in snapshot.ranks if rank.rank in culprits]
    return bool(processes) and all(_process_may_spin(snapshot, process) for process in processes)


def _process_may_spin(snapshot: Snapshot, process: Process) -> bool:
    threads = [sample.threads[0] for sample in process.samples if sample.threads]
    stacks = {stack for thread in threads if (stack := before_agent(snapshot.stack(thread.stack)))}
    installed = any(_is_installed(stack[-1].file) for stack in stacks)
    return len(stacks) >= _LINES_OF_LOOP and not installed and not _counts(threads)


def samples_in_interpreter(snapshot: Snapshot, ranks: RankSet) -> int:
    """Return in how many samples C frames show that these ranks were in the interpreter itself; 0 if one was seen in
    another library, where numpy and torch compute."""
    numbers = [_in_interpreter(snapshot, rank.process) for rank in snapshot.ranks if rank.rank in ranks]
    return min(numbers, default=0)


def _in_interpreter(snapshot: Snapshot, process: Process) -> int:
    threads = [sample.threads[0] for sample in process.samples if sample.threads]
    merged = [snapshot.stack(thread.native) for thread in threads if thread.native]
    # A kernel of mkl cannot be unwound: it may come before the Python frames that have called it.
    files = {frame.file.rsplit("/", 1)[-1] for frames in merged for frame in frames if frame.native}
    return len(merged) if all(name.startswith(_INTERPRETER) for name in files) else 0


def _counts(threads: Iterable[Thread]) -> bool:
    """Whether the plain values of a frame change, or are not known."""
    marks: dict[str, set[str]] = {}
    for thread in threads:
        for name, mark in thread.hints.items():
            if name.endswith(PROGRESS):
                marks.setdefault(name, set()).add(mark)
    return not marks or any(len(values) > 1 for values in marks.values())
