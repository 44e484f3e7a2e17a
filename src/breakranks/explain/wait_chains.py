"""What introspection shows: which lock a thread waits for, which thread holds it, and how far each rank is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from breakranks.explain.activity import Activity
from breakranks.explain.causes import Fact
from breakranks.explain.causes.collective_causes import CounterDiffers, CounterSpan, RanksAtSteps, RanksBehind
from breakranks.explain.causes.thread_causes import ReportedWait, WaitedObject
from breakranks.explain.diagnosis import CommonReport
from breakranks.explain.finding_parts import Where
from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import BY_ACQUIRE, ThreadWait
from breakranks.snapshot.model import Process, Snapshot, Thread

_WAITS = frozenset({"thread-wait", "exit", "idle"})
_LONGEST = 16
_SHOWN = 3
_VALUES_SHOWN = 4
# Waits for a thread to do something, not for a lock that it holds.
JOINS = frozenset({"Thread", "Future"})
Key = tuple[str, str, str]


class ChainStep(NamedTuple):
    """A thread, and what it waits for inside its process (None: not known)."""

    thread: Thread
    activity: Activity
    wait: ThreadWait | None


class WaitChain(NamedTuple):
    """A thread, the thread that holds what it waits for, and so on. ``back`` is the index of the step that the last one
    waits for: a deadlock. None: there is no deadlock."""

    steps: tuple[ChainStep, ...]
    back: int | None = None

    @property
    def end(self) -> ChainStep:
        return self.steps[-1]

    @property
    def joins(self) -> bool:
        """Whether it begins with a wait for a thread, not for a lock."""
        return self.steps[0].wait is not None and self.steps[0].wait.kind in JOINS

    @property
    def sure(self) -> bool:
        return all(step.wait is None or step.wait.proof != BY_ACQUIRE for step in self.steps)


def follow(process: Process, threads: Iterable[tuple[Thread, Activity]], tid: int) -> WaitChain | None:
    """Return the chain that begins with a thread, or None if it is not known what the thread waits for."""
    known = {thread.tid: (thread, activity) for thread, activity in threads}
    steps: list[ChainStep] = []
    at: dict[int, int] = {}
    while tid in known and tid not in at and len(steps) < _LONGEST:
        at[tid] = len(steps)
        thread, activity = known[tid]
        wait = process.inside.wait_of(tid) if process.inside is not None and activity.word in _WAITS else None
        steps.append(ChainStep(thread, activity, wait))
        tid = wait.owner if wait is not None else 0
    if not steps or steps[0].wait is None:
        return None
    return WaitChain(tuple(steps), at.get(tid))


def waited(wait: ThreadWait) -> WaitedObject:
    """Return what a thread waits for as plain data, for a finding."""
    taken = Where(wait.function, wait.file, wait.line) if wait.function else None
    return WaitedObject(kind=wait.kind, name=wait.name, state=wait.state, taken=taken)


def key(process: Process) -> object:
    """Return a key that is equal for processes with the same waits, except for thread ids."""
    inside = process.inside
    if inside is None:
        return None
    names = _names(process)
    waits = [
        (names.get(wait.tid, ""), wait.kind, wait.name, names.get(wait.owner, ""), wait.proof, wait.state, wait.ended)
        for wait in inside.waits
    ]
    loader = inside.loader
    return tuple(waits), loader and (loader.worker, loader.batch)


def _names(process: Process) -> dict[int, str]:
    return {thread.tid: thread.name for thread in process.samples[-1].threads} if process.samples else {}


def counters(process: Process, tid: int = 0) -> dict[Key, int]:
    """Return the loop counters of a thread, outermost loop first; of the main thread by default."""
    inside = process.inside
    return {
        (loop.file, loop.function, name): value
        for loop in (inside.loops if inside is not None else ())
        if loop.tid == (tid or process.pid)
        for name, value in zip(loop.names, loop.values, strict=True)
    }


def behind(ranks: dict[int, dict[Key, int]]) -> tuple[RankSet, CounterDiffers | None]:
    """Return the ranks that are behind the others in a shared loop, and the counter that shows it."""
    for key in _shared(ranks):
        found: dict[int, list[int]] = {}
        for rank, values in ranks.items():
            found.setdefault(values[key], []).append(rank)
        if len(found) > 1:
            return RankSet(found[min(found)]), differs(_name(key), found)
    return RankSet(), None


def differs(name: str, values: dict[int, list[int]]) -> CounterDiffers:
    """Return a counter with the ranks that have each value, the lowest value first."""
    some = sorted(values.items())[:_VALUES_SHOWN]
    return CounterDiffers(name=name, values=tuple((value, str(RankSet(ranks))) for value, ranks in some))


def reporting_processes(snapshot: Snapshot) -> dict[int, Process]:
    """Return the processes of the ranks that were introspected."""
    return {rank.rank: rank.process for rank in snapshot.ranks if rank.process.inside is not None}


def progress(processes: dict[int, Process], culprits: RankSet, victims: RankSet) -> Fact | None:
    """Return how far culprits and victims are in their loops, of the introspected ``processes``."""
    if not processes:
        return None
    known = {rank: found for rank in culprits | victims if rank in processes and (found := counters(processes[rank]))}
    if not known:
        return None
    shared = _shared(known) if len(known) == len(culprits | victims) else []
    differ = [key for key in shared if len({values[key] for values in known.values()}) > 1]
    others = victims - culprits
    if differ and culprits and others:
        span, others_span = _span(differ[0], known, culprits), _span(differ[0], known, others)
        return RanksBehind(ranks=str(culprits), span=span, others=len(others), others_span=others_span)
    if differ and not others:
        return behind(known)[1]
    if shared and not differ and len(known) > 1:
        return RanksAtSteps(ranks="", spans=_once({key: _span(key, known, RankSet(known)) for key in shared}))
    mine = RankSet(known) & culprits
    if len(mine) != len(culprits) or not mine:
        return None
    alike = _shared({rank: known[rank] for rank in mine})
    spans = _once({key: _span(key, known, mine) for key in alike})
    return RanksAtSteps(ranks=str(mine), spans=spans) if spans else None


def _shared(known: dict[int, dict[Key, int]]) -> list[Key]:
    first, *rest = known.values()
    return [key for key in first if all(key in values for values in rest)]


def _name(key: Key) -> str:
    return key[2].removeprefix("self.")


def _span(key: Key, known: dict[int, dict[Key, int]], ranks: RankSet) -> CounterSpan:
    return _span_of(key, [known[rank][key] for rank in ranks])


def _span_of(key: Key, values: list[int]) -> CounterSpan:
    return CounterSpan(name=_name(key), low=min(values), high=max(values))


def _once(spans: dict[Key, CounterSpan]) -> tuple[CounterSpan, ...]:
    """Return each counter once. Where functions have counters of the same name with other values, the function is
    added."""
    alike: dict[str, set[CounterSpan]] = {}
    for key, span in spans.items():
        alike.setdefault(_name(key), set()).add(span)
    shown = (span if len(alike[_name(key)]) == 1 else replace(span, function=key[1]) for key, span in spans.items())
    return tuple(dict.fromkeys(shown))[:_SHOWN]


def common_report(reporting: dict[int, Process], ranks: RankSet, name: str = "") -> CommonReport | None:
    """Return what introspection shows for all of these ranks: what they wait for, if it is the same, and their
    counters.

    ``name`` is that of a thread; by default the main thread.
    """
    if not reporting or not all(rank in reporting for rank in ranks):
        return None
    processes = [reporting[rank] for rank in ranks]
    waits = []
    found: dict[Key, list[int]] = {}
    for process in processes:
        tids = [tid for tid, called in _names(process).items() if called == name] if name else [process.pid]
        waits.append(_reported_wait(process, tids[0] if tids else 0))
        for key, value in counters(process, tids[0] if tids else -1).items():
            found.setdefault(key, []).append(value)
    wait = waits[0] if waits and len(set(waits)) == 1 else None
    spans = {key: _span_of(key, values) for key, values in found.items() if len(values) == len(processes)}
    return CommonReport(wait=wait, counters=_once(spans))


def _reported_wait(process: Process, tid: int) -> ReportedWait | None:
    inside = process.inside
    if inside is None:
        return None
    wait = inside.wait_of(tid)
    if wait is not None:
        owner = _names(process).get(wait.owner, "")
        return ReportedWait(wait=waited(wait), owner=owner, own=wait.owner == tid)
    loader = inside.loader
    if loader is not None and loader.tid == tid and loader.worker >= 0:
        return ReportedWait(batch=loader.batch, worker=loader.worker)
    files = [file.path for file in inside.polled if file.tid == tid]
    return ReportedWait(path=files[0]) if files else None
