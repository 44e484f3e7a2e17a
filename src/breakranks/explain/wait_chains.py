"""What a process said of itself: which lock it waits for and whose that is, and how far each rank has come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from breakranks.explain.activity import Activity
from breakranks.explain.causes import Fact
from breakranks.explain.causes.collective_causes import CounterDiffers, CounterSpan, RanksAtSteps, RanksBehind
from breakranks.explain.causes.thread_causes import SaidWait, WaitedObject
from breakranks.explain.diagnosis import SaidTogether
from breakranks.explain.values import Where
from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import BY_ACQUIRE, ThreadWait
from breakranks.snapshot.model import Process, Snapshot, Thread

_WAITS = frozenset({"thread-wait", "exit", "idle"})
_LONGEST = 16
_SHOWN = 3
_VALUES_SHOWN = 4
# Waits for a thread to do something, and not for a lock that it has.
JOINS = frozenset({"Thread", "Future"})
Key = tuple[str, str, str]


class ChainStep(NamedTuple):
    """A thread, and what it waits for inside its process (None: nothing that is known)."""

    thread: Thread
    activity: Activity
    wait: ThreadWait | None


class WaitChain(NamedTuple):
    """From one thread to the one that has what it waits for, and on. ``back`` is the step to which the last one leads
    again: a deadlock. None: it ends."""

    steps: tuple[ChainStep, ...]
    back: int | None = None

    @property
    def end(self) -> ChainStep:
        return self.steps[-1]

    @property
    def joins(self) -> bool:
        """Whether it begins with a wait for a thread, and not for a lock."""
        return self.steps[0].wait is not None and self.steps[0].wait.kind in JOINS

    @property
    def sure(self) -> bool:
        return all(step.wait is None or step.wait.proof != BY_ACQUIRE for step in self.steps)


def follow(process: Process, threads: Iterable[tuple[Thread, Activity]], tid: int) -> WaitChain | None:
    """The chain from a thread; None where it is not known what it waits for."""
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
    """What a thread waits for, as plain data for a finding."""
    taken = Where(wait.function, wait.file, wait.line) if wait.function else None
    return WaitedObject(kind=wait.kind, name=wait.name, state=wait.state, taken=taken)


def key(process: Process) -> object:
    """Equal for processes that said the same of their waits, but for the numbers of threads."""
    inside = process.inside
    if inside is None:
        return None
    names = _names(process)
    waits = [
        (names.get(one.tid, ""), one.kind, one.name, names.get(one.owner, ""), one.proof, one.state, one.ended)
        for one in inside.waits
    ]
    loader = inside.loader
    return tuple(waits), loader and (loader.worker, loader.batch)


def _names(process: Process) -> dict[int, str]:
    return {one.tid: one.name for one in process.samples[-1].threads} if process.samples else {}


def counters(process: Process, tid: int = 0) -> dict[Key, int]:
    """How often the loops of a thread have gone round, outermost first; of the main thread if none is named."""
    inside = process.inside
    return {
        (loop.file, loop.function, name): value
        for loop in (inside.loops if inside is not None else ())
        if loop.tid == (tid or process.pid)
        for name, value in zip(loop.names, loop.values, strict=True)
    }


def behind(ranks: dict[int, dict[Key, int]]) -> tuple[RankSet, CounterDiffers | None]:
    """Of ranks that stand in the same loops, those that have come least far, and by which variable that shows."""
    for one in _shared(ranks):
        found: dict[int, list[int]] = {}
        for rank, values in ranks.items():
            found.setdefault(values[one], []).append(rank)
        if len(found) > 1:
            return RankSet(found[min(found)]), differs(_name(one), found)
    return RankSet(), None


def differs(name: str, values: dict[int, list[int]]) -> CounterDiffers:
    """A counter with the ranks that have each value, the least first."""
    some = sorted(values.items())[:_VALUES_SHOWN]
    return CounterDiffers(name=name, values=tuple((value, str(RankSet(ranks))) for value, ranks in some))


def spoken(snapshot: Snapshot) -> dict[int, Process]:
    """The ranks that said something of themselves."""
    return {rank.rank: rank.process for rank in snapshot.ranks if rank.process.inside is not None}


def progress(processes: dict[int, Process], culprits: RankSet, victims: RankSet) -> Fact | None:
    """How far culprits and victims have come in their loops, of ranks that are ``spoken``."""
    if not processes:
        return None
    known = {rank: found for rank in culprits | victims if rank in processes and (found := counters(processes[rank]))}
    if not known:
        return None
    shared = _shared(known) if len(known) == len(culprits | victims) else []
    differ = [one for one in shared if len({values[one] for values in known.values()}) > 1]
    others = victims - culprits
    if differ and culprits and others:
        span, others_span = _span(differ[0], known, culprits), _span(differ[0], known, others)
        return RanksBehind(ranks=str(culprits), span=span, others=len(others), others_span=others_span)
    if differ and not others:
        return behind(known)[1]
    if shared and not differ and len(known) > 1:
        return RanksAtSteps(ranks="", spans=_once({one: _span(one, known, RankSet(known)) for one in shared}))
    mine = RankSet(known) & culprits
    if len(mine) != len(culprits) or not mine:
        return None
    alike = _shared({rank: known[rank] for rank in mine})
    spans = _once({one: _span(one, known, mine) for one in alike})
    return RanksAtSteps(ranks=str(mine), spans=spans) if spans else None


def _shared(known: dict[int, dict[Key, int]]) -> list[Key]:
    first, *rest = known.values()
    return [one for one in first if all(one in values for values in rest)]


def _name(one: Key) -> str:
    return one[2].removeprefix("self.")


def _span(one: Key, known: dict[int, dict[Key, int]], ranks: RankSet) -> CounterSpan:
    return _span_of(one, [known[rank][one] for rank in ranks])


def _span_of(one: Key, values: list[int]) -> CounterSpan:
    return CounterSpan(name=_name(one), low=min(values), high=max(values))


def _once(spans: dict[Key, CounterSpan]) -> tuple[CounterSpan, ...]:
    """Each counter once. Functions may have counters of the same name: where these differ, with the function."""
    alike: dict[str, set[CounterSpan]] = {}
    for one, span in spans.items():
        alike.setdefault(_name(one), set()).add(span)
    told = (span if len(alike[_name(one)]) == 1 else replace(span, function=one[1]) for one, span in spans.items())
    return tuple(dict.fromkeys(told))[:_SHOWN]


def said_together(spoke: dict[int, Process], ranks: RankSet, name: str = "") -> SaidTogether | None:
    """What ranks of one class say, if all have ``spoken``: what they wait for, if it is the same, and how far they are.

    ``name`` is that of a thread; the main one if there is none.
    """
    if not spoke or not all(rank in spoke for rank in ranks):
        return None
    processes = [spoke[rank] for rank in ranks]
    said = []
    found: dict[Key, list[int]] = {}
    for process in processes:
        tids = [tid for tid, called in _names(process).items() if called == name] if name else [process.pid]
        said.append(_said_wait(process, tids[0] if tids else 0))
        for one, value in counters(process, tids[0] if tids else -1).items():
            found.setdefault(one, []).append(value)
    wait = said[0] if said and len(set(said)) == 1 else None
    spans = {one: _span_of(one, values) for one, values in found.items() if len(values) == len(processes)}
    return SaidTogether(wait=wait, counters=_once(spans))


def _said_wait(process: Process, tid: int) -> SaidWait | None:
    inside = process.inside
    if inside is None:
        return None
    wait = inside.wait_of(tid)
    if wait is not None:
        owner = _names(process).get(wait.owner, "")
        return SaidWait(wait=waited(wait), owner=owner, own=wait.owner == tid)
    loader = inside.loader
    if loader is not None and loader.tid == tid and loader.worker >= 0:
        return SaidWait(batch=loader.batch, worker=loader.worker)
    files = [one.path for one in inside.polled if one.tid == tid]
    return SaidWait(path=files[0]) if files else None
