"""data-loading, helper-dead: a rank waits for a process that it started to work for it."""

from __future__ import annotations

from breakranks.explain import phrases
from breakranks.explain.diagnosis import CERTAIN, LIKELY
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView, look
from breakranks.explain.rules import stopped_process
from breakranks.explain.rules.external_waits import works
from breakranks.explain.rules.lock_owners import attach
from breakranks.explain.rules.rank_cause import (
    AT_ONCE_SECONDS,
    LONG_SLEEP_SECONDS,
    MOVING_SECONDS,
    PATIENCE_SECONDS,
    RankCause,
)
from breakranks.snapshot.introspection import Loader
from breakranks.snapshot.model import Process, family

_POOLS = ("multiprocessing.Pool", "ProcessPoolExecutor", "joblib")
_SERVANTS = ("resource_tracker", "forkserver")


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    if one.activity.word not in ("data-loading", "helper-wait"):
        return None
    helpers = [child for child in _helpers(one.process) if not any(s in " ".join(child.command) for s in _SERVANTS)]
    looks = [(child, look(case.snapshot, case.reader, child)) for child in helpers]
    loader = _owed(one)
    awaited = [pair for pair in looks if loader is not None and pair[0].pid == loader.pid]
    # The rank itself has said whose batch is next: what its other workers do matters only if that one is well.
    known = awaited and (_dead(case, one, awaited) or _stuck(case, one, awaited))
    return (
        known
        or _gone(one, loader, looks)
        or _dead(case, one, looks)
        or _stuck(case, one, looks)
        or _lost_task(one, looks)
        or _nobody(one, looks)
        or _waiting(one, looks)
    )


def _owed(one: ProcessView) -> Loader | None:
    """The batch that comes next, and who owes it."""
    loader = one.process.inside.loader if one.process.inside is not None else None
    return loader if loader is not None and loader.pid and one.activity.word == "data-loading" else None


def _gone(one: ProcessView, loader: Loader | None, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    """The worker whose batch comes next is not there any more."""
    if loader is None or any(child.pid == loader.pid for child, _ in looks):
        return None
    return RankCause(
        kind="helper-dead",
        text=f"waits (loading data) for worker {loader.worker} (process {loader.pid}), which is gone, "
        f"in {phrases.place(one.where)}",
        evidence=(f"batch {loader.batch} is due from worker {loader.worker}, process {loader.pid}: there is none",),
        next=(f"dmesg | grep -i 'killed process {loader.pid}'",),
        confidence=CERTAIN,
        needs=PATIENCE_SECONDS,
        where=one.where,
        because="the loader says whose batch is next",
    )


def _at_sample(child: Process) -> tuple[str, str]:
    """Which sample a worker is at: for the sentence, and for the proof."""
    item = child.inside.item if child.inside is not None else None
    if item is None or item.index is None:
        return "", ""
    more = f", of batch {item.batch}" if item.batch >= 0 else ""
    samples = ", ".join(map(str, item.samples[:16])) + (", …" if len(item.samples) > 16 else "")
    return f", at sample {item.index}", f"it reads sample {item.index}{more}" + (f": {samples}" if samples else "")


def _helpers(process: Process) -> list[Process]:
    return [child for child in family(process) if child.pid != process.pid]


def _doing(one: ProcessView) -> str:
    return "loading data" if one.activity.word == "data-loading" else f"in {one.activity.op}"


def _dead(case: JobView, one: ProcessView, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    dead = [child for child, _ in looks if child.state in "ZX"]
    if not dead:
        return None
    pid = dead[0].pid
    names = phrases.listed([f"{child.pid}" for child in dead])
    return RankCause(
        kind="helper-dead",
        text=f"waits ({_doing(one)}) for its helper process {names}, which is dead, in {phrases.place(one.where)}",
        evidence=(f"process {names} is a zombie: it ended and {one.process.pid} has not taken note",
         *stopped_process.oom_evidence(case, dead[0])),
        next=(f"dmesg | grep -i 'killed process {pid}'",),
        confidence=CERTAIN if len(dead) == len(looks) else LIKELY,
        needs=AT_ONCE_SECONDS,
        where=one.where,
        because="the kernel says that the helper is dead",
    )  # fmt: skip


def _stuck(case: JobView, one: ProcessView, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    """A helper that stands somewhere: its own stack is the proof."""
    kind = "data-loading" if one.activity.word == "data-loading" else "subprocess-wait"
    for child, _ in looks:
        if child.state in "Tt":
            return RankCause(
                kind=kind,
                text=f"waits ({_doing(one)}) for its helper process {child.pid}, "
                f"which is stopped (state {child.state})",
                evidence=(f"helper {child.pid} is in state {child.state}",),
                next=(f"kill -CONT {child.pid}",),
                confidence=CERTAIN, needs=AT_ONCE_SECONDS, where=one.where,
                because="the kernel says that the helper is stopped",
            )  # fmt: skip
    working = [(child, its) for child, its in looks if its.activity.word not in ("idle", "unknown") and child.python]
    if not working:
        return None
    child, its = max(working, key=lambda pair: pair[1].stands)
    naps = its.activity.word == "sleep" and its.left is not None and its.left <= LONG_SLEEP_SECONDS
    moving = its.moved or its.busy > 0.5 or naps or works(child)
    evidence = [
        f"helper {child.pid} is {its.activity.phrase}, in {phrases.place(its.where)}"
        + (f", for {phrases.duration(its.stands)}" if its.stands >= 1 else ""),
    ]
    alone = sum(1 for t, _ in its.threads if t.python) == 1
    if its.activity.word == "thread-wait" and alone and "--multiprocessing-fork" not in child.command:
        evidence.append(
            "it waits for a lock and has no other thread: a thread of its parent held the lock when it was forked"
        )
    if one.activity.word == "helper-wait" and its.activity.word in ("thread-wait", "helper-wait"):
        kind = "thread-deadlock"  # it waits for a lock, or for us: the two wait for each other
    loader = _owed(one)
    which = ""
    if loader is not None and loader.pid == child.pid:
        which = f" (worker {loader.worker})"
        evidence.append(f"batch {loader.batch} is due from worker {loader.worker}, process {loader.pid}")
    sample, proof = _at_sample(child)
    evidence += [proof] if proof else []
    return RankCause(
        kind=kind,
        text=f"waits ({_doing(one)}) for its helper process {child.pid}{which}, which is {its.activity.phrase} "
        f"in {phrases.place(its.where)}{sample}",
        evidence=tuple(evidence),
        next=(f"breakranks stacks pid:{child.pid} --native", *attach(case, one)),
        confidence=LIKELY if moving or one.activity.word == "helper-wait" else CERTAIN,
        needs=MOVING_SECONDS if moving else PATIENCE_SECONDS,
        where=its.where or one.where,
        because="the helper's own stack shows it",
    )


def _lost_task(one: ProcessView, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    """A pool whose workers are all idle while the parent waits: a worker died with the task in its hands."""
    if one.activity.op not in _POOLS or not looks:
        return None
    if any(its.activity.word not in ("idle", "unknown", "helper-wait", "thread-wait") for _, its in looks):
        return None
    starts = sorted(child.started for child, _ in looks)
    # A pool forks its workers in one go, within milliseconds.
    late = starts[-1] - starts[0] > 0.1
    evidence = [f"all {len(looks)} helpers are idle, waiting for work"]
    if late:
        evidence.append(
            f"one of them started {phrases.duration(starts[-1] - starts[0])} after the first: it replaced one that died"
        )
    return RankCause(
        kind="helper-dead",
        text=f"waits in {one.activity.op} for a result that no helper is working on, in {phrases.place(one.where)}: "
        "a helper died and its task is lost",
        evidence=tuple(evidence),
        next=("dmesg | grep -i 'killed process'",),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=one.where,
        because="every helper is idle" + (", and one was replaced" if late else ""),
    )


def _nobody(one: ProcessView, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    if looks:
        return None
    return RankCause(
        kind="helper-dead",
        text=f"waits {_doing(one)} in {phrases.place(one.where)}, but has no helper process any more",
        evidence=(f"process {one.process.pid} has no children",),
        next=("dmesg | grep -i 'killed process'",),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=one.where,
        because="nobody is left who could answer",
    )


def _waiting(one: ProcessView, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    commands = phrases.listed(sorted({phrases.command(child.command or (child.name,), 60) for child, _ in looks})[:3])
    kind = "data-loading" if one.activity.word == "data-loading" else "subprocess-wait"
    return RankCause(
        kind=kind,
        text=f"waits {_doing(one)} in {phrases.place(one.where)}",
        evidence=(f"its helpers: {commands}",),
        next=(f"breakranks stacks pid:{one.process.pid} --threads",),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=one.where,
        because="its stack shows the wait",
    )
