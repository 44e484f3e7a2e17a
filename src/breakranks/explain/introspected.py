"""What a process said of itself, as people say it: which lock and whose, and how far each rank has come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from breakranks.explain import phrases
from breakranks.explain.activity import Activity
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.introspection import BY_ACQUIRE, ThreadWait
from breakranks.snapshot.model import Process, Snapshot, Thread

_WAITS = frozenset({"thread-wait", "exit", "idle"})
_LONGEST = 16
_SHOWN = 3
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


def thing(wait: ThreadWait) -> str:
    """``self.lock (Lock)``"""
    if wait.kind == "Thread":
        return f"thread {wait.name}"
    if wait.kind == "import lock":
        return f"the import lock of {wait.name}"
    return f"{wait.name} ({wait.kind})" if wait.name else f"a {wait.kind}"


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


def behind(ranks: dict[int, dict[Key, int]]) -> tuple[RankSet, str]:
    """Of ranks that stand in the same loops, those that have come least far, and by which variable that shows."""
    for one in _shared(ranks):
        found: dict[int, list[int]] = {}
        for rank, values in ranks.items():
            found.setdefault(values[one], []).append(rank)
        if len(found) > 1:
            parts = [f"{value} on {ranks_text(RankSet(some))}" for value, some in sorted(found.items())[:4]]
            return RankSet(found[min(found)]), f"{_name(one)} is {phrases.listed(parts)}"
    return RankSet(), ""


def spoken(snapshot: Snapshot) -> dict[int, Process]:
    """The ranks that said something of themselves."""
    return {rank.rank: rank.process for rank in snapshot.ranks if rank.process.inside is not None}


def progress(processes: dict[int, Process], culprits: RankSet, victims: RankSet) -> str:
    """``rank 2 is at step=117, the others at step=118``, of ranks that are ``spoken``."""
    if not processes:
        return ""
    known = {rank: found for rank in culprits | victims if rank in processes and (found := counters(processes[rank]))}
    if not known:
        return ""
    shared = _shared(known) if len(known) == len(culprits | victims) else []
    differ = [one for one in shared if len({values[one] for values in known.values()}) > 1]
    others = victims - culprits
    if differ and culprits and others:
        one = differ[0]
        text = f"{_are(culprits)} at {_span(one, known, culprits)}"
        return f"{text}, {'the other' if len(others) == 1 else 'the others'} at {_span(one, known, others)}"
    if differ and not others:
        return behind(known)[1]
    if shared and not differ and len(known) > 1:
        return "all are at " + ", ".join(_once({one: _span(one, known, RankSet(known)) for one in shared}))
    mine = RankSet(known) & culprits
    if len(mine) != len(culprits) or not mine:
        return ""
    alike = _shared({rank: known[rank] for rank in mine})
    spans = ", ".join(_once({one: _span(one, known, mine) for one in alike}))
    return f"{_are(mine)} at {spans}" if spans else ""


def _are(ranks: RankSet) -> str:
    return f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _shared(known: dict[int, dict[Key, int]]) -> list[Key]:
    first, *rest = known.values()
    return [one for one in first if all(one in values for values in rest)]


def _name(one: Key) -> str:
    return one[2].removeprefix("self.")


def _span(one: Key, known: dict[int, dict[Key, int]], ranks: RankSet) -> str:
    values = [known[rank][one] for rank in ranks]
    low, high = min(values), max(values)
    return f"{_name(one)}={low}" if low == high else f"{_name(one)}={low} to {high}"


def _once(spans: dict[Key, str]) -> list[str]:
    """Each counter said once. Functions may have counters of the same name: where these differ, with the function."""
    texts: dict[str, set[str]] = {}
    for one, text in spans.items():
        texts.setdefault(_name(one), set()).add(text)
    said = (text if len(texts[_name(one)]) == 1 else f"{text} in {one[1]}" for one, text in spans.items())
    return list(dict.fromkeys(said))[:_SHOWN]


def note(spoke: dict[int, Process], ranks: RankSet, name: str = "") -> str:
    """A few words on ranks of one class, if all have ``spoken``: what they wait for, where they say the same, and how
    far they are.

    ``name`` is that of a thread; the main one if there is none.
    """
    if not spoke or not all(rank in spoke for rank in ranks):
        return ""
    processes = [spoke[rank] for rank in ranks]
    said = []
    found: dict[Key, list[int]] = {}
    for process in processes:
        tids = [tid for tid, called in _names(process).items() if called == name] if name else [process.pid]
        said.append(_wait_words(process, tids[0] if tids else 0))
        for one, value in counters(process, tids[0] if tids else -1).items():
            found.setdefault(one, []).append(value)
    parts = [said[0]] if said and said[0] and len(set(said)) == 1 else []
    spans = {
        one: f"{_name(one)} {min(values)}"
        if min(values) == max(values)
        else f"{_name(one)} {min(values)}-{max(values)}"
        for one, values in found.items()
        if len(values) == len(processes)
    }
    return ", ".join([*parts, *_once(spans)])


def _wait_words(process: Process, tid: int) -> str:
    inside = process.inside
    if inside is None:
        return ""
    wait = inside.wait_of(tid)
    files = [one.path for one in inside.polled if one.tid == tid]
    if wait is None:
        if inside.loader is not None and inside.loader.tid == tid and inside.loader.worker >= 0:
            return f"waits for batch {inside.loader.batch} of worker {inside.loader.worker}"
        return f"waits for {files[0]}" if files else ""
    text = f"waits for {thing(wait)}"
    if wait.owner == tid:
        return f"{text}, which it holds itself"
    owner = _names(process).get(wait.owner, "")
    if owner and wait.kind not in JOINS:
        text += f", held by {owner}"
    return f"{text}, {wait.state}" if wait.state else text
