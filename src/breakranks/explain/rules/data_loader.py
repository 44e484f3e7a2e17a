"""data-loading, helper-dead: a rank waits for a helper process that it has started."""

from __future__ import annotations

from breakranks.explain.actions import Action, RunShell, stacks_of
from breakranks.explain.causes import Fact
from breakranks.explain.causes.helper_causes import (
    BatchDue,
    ForkedWithLock,
    HelperCommands,
    HelperDead,
    HelperDoing,
    HelperReplaced,
    HelpersIdle,
    HelperState,
    HelperStopped,
    HelperStuck,
    HelperWait,
    HelperZombies,
    NoChildren,
    NoHelper,
    ReadsSample,
    TaskLost,
    WorkerGone,
)
from breakranks.explain.diagnosis import CERTAIN, LIKELY
from breakranks.explain.finding_parts import where_of
from breakranks.explain.frame_meanings import POOLS
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView, inspect_process
from breakranks.explain.rules import stopped_process
from breakranks.explain.rules.external_waits import command_of, works
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

_SERVANTS = ("resource_tracker", "forkserver")
_SAMPLES_SHOWN = 16
_COMMANDS_SHOWN = 3


def reason(job: JobView, view: ProcessView) -> RankCause | None:
    if view.activity.word not in ("data-loading", "helper-wait"):
        return None
    helpers = [child for child in _helpers(view.process) if not any(s in " ".join(child.command) for s in _SERVANTS)]
    views = [(child, inspect_process(job.snapshot, job.reader, child)) for child in helpers]
    loader = _owed(view)
    awaited = [pair for pair in views if loader is not None and pair[0].pid == loader.pid]
    # Introspection shows which worker owes the next batch. The other workers matter only if that one is healthy.
    known = awaited and (_dead(job, view, awaited) or _stuck(job, view, awaited))
    return (
        known
        or _gone(view, loader, views)
        or _dead(job, view, views)
        or _stuck(job, view, views)
        or _lost_task(view, views)
        or _no_helper(view, views)
        or _waiting(view, views)
    )


def _owed(view: ProcessView) -> Loader | None:
    """Return the next batch, and the worker that owes it."""
    loader = view.process.inside.loader if view.process.inside is not None else None
    return loader if loader is not None and loader.pid and view.activity.word == "data-loading" else None


def _gone(view: ProcessView, loader: Loader | None, views: list[tuple[Process, ProcessView]]) -> RankCause | None:
    """The worker that owes the next batch no longer exists."""
    if loader is None or any(child.pid == loader.pid for child, _ in views):
        return None
    return RankCause(
        kind="helper-dead",
        cause=WorkerGone(worker=loader.worker, pid=loader.pid, where=where_of(view.where)),
        evidence=(BatchDue(batch=loader.batch, worker=loader.worker, pid=loader.pid, gone=True),),
        next=(_killed(loader.pid),),
        confidence=CERTAIN,
        needs=PATIENCE_SECONDS,
        where=view.where,
        grounds=("loader-says",),
    )


def _killed(pid: int | None = None) -> Action:
    """Return the command that shows whether the kernel killed a process."""
    which = "" if pid is None else f" {pid}"
    return RunShell(script=f"dmesg | grep -i 'killed process{which}'")


def _sample(child: Process) -> ReadsSample | None:
    """Return the sample that a worker reads."""
    item = child.inside.item if child.inside is not None else None
    if item is None or item.sample is None:
        return None
    samples = tuple(item.samples[:_SAMPLES_SHOWN])
    more = len(item.samples) > _SAMPLES_SHOWN
    return ReadsSample(index=item.sample, batch=item.batch, samples=samples, more=more)


def _helpers(process: Process) -> list[Process]:
    return [child for child in family(process) if child.pid != process.pid]


def _task(view: ProcessView) -> str:
    """Return the name of what it waits in; empty if it loads data."""
    return "" if view.activity.word == "data-loading" else view.activity.op


def _dead(job: JobView, view: ProcessView, views: list[tuple[Process, ProcessView]]) -> RankCause | None:
    dead = [child for child, _ in views if child.state in "ZX"]
    if not dead:
        return None
    pids = tuple(child.pid for child in dead)
    return RankCause(
        kind="helper-dead",
        cause=HelperDead(task=_task(view), pids=pids, where=where_of(view.where)),
        evidence=(
            HelperZombies(pids=pids, parent=view.process.pid),
            *stopped_process.oom_evidence(job, dead[0]),
        ),
        next=(_killed(pids[0]),),
        confidence=CERTAIN if len(dead) == len(views) else LIKELY,
        needs=AT_ONCE_SECONDS,
        where=view.where,
        grounds=("helper-dead",),
    ).seen_twice(dead[0], "ZX", job.sampled)


def _stuck(job: JobView, view: ProcessView, views: list[tuple[Process, ProcessView]]) -> RankCause | None:
    """A helper is blocked: its own stack is the proof."""
    kind = "data-loading" if view.activity.word == "data-loading" else "subprocess-wait"
    for child, _ in views:
        if child.state in "Tt":
            return RankCause(
                kind=kind,
                cause=HelperStopped(task=_task(view), pid=child.pid, state=child.state),
                evidence=(HelperState(pid=child.pid, state=child.state),),
                next=(RunShell(script=f"kill -CONT {child.pid}"),),
                confidence=CERTAIN,
                needs=AT_ONCE_SECONDS,
                where=view.where,
                grounds=("helper-stopped",),
            ).seen_twice(child, "Tt", job.sampled)
    working = [(child, its) for child, its in views if its.activity.word not in ("idle", "unknown") and child.python]
    if not working:
        return None
    child, its = max(working, key=lambda pair: pair[1].stands)
    naps = its.activity.word == "sleep" and its.left is not None and its.left <= LONG_SLEEP_SECONDS
    moving = its.moved or its.busy > 0.5 or naps or works(child)
    evidence: list[Fact] = [HelperDoing(pid=child.pid, doing=its.doing)]
    alone = sum(1 for t, _ in its.threads if t.python) == 1
    if its.activity.word == "thread-wait" and alone and "--multiprocessing-fork" not in child.command:
        evidence.append(ForkedWithLock())
    if view.activity.word == "helper-wait" and its.activity.word in ("thread-wait", "helper-wait"):
        kind = "thread-deadlock"  # it waits for a lock, or for the rank itself: the two wait for each other
    loader = _owed(view)
    worker = None
    if loader is not None and loader.pid == child.pid:
        worker = loader.worker
        evidence.append(BatchDue(batch=loader.batch, worker=loader.worker, pid=loader.pid))
    sample = _sample(child)
    evidence += [sample] if sample is not None else []
    return RankCause(
        kind=kind,
        cause=HelperStuck(
            task=_task(view),
            pid=child.pid,
            doing=its.doing,
            worker=worker,
            sample=sample.index if sample is not None else None,
        ),
        evidence=tuple(evidence),
        next=(stacks_of(child.pid, "--native"), *attach(job, view)),
        confidence=LIKELY if moving or view.activity.word == "helper-wait" else CERTAIN,
        needs=MOVING_SECONDS if moving else PATIENCE_SECONDS,
        where=its.where or view.where,
        grounds=("helper-stack",),
    )


def _lost_task(view: ProcessView, views: list[tuple[Process, ProcessView]]) -> RankCause | None:
    """All workers of a pool are idle while the parent waits: a worker died and its task was lost."""
    if view.activity.op not in POOLS or not views:
        return None
    if any(its.activity.word not in ("idle", "unknown", "helper-wait", "thread-wait") for _, its in views):
        return None
    starts = sorted(child.started for child, _ in views)
    # A pool forks all its workers at once, within milliseconds.
    late = starts[-1] - starts[0] > 0.1
    return RankCause(
        kind="helper-dead",
        cause=TaskLost(op=view.activity.op, where=where_of(view.where)),
        evidence=(
            HelpersIdle(count=len(views)),
            *((HelperReplaced(seconds=starts[-1] - starts[0]),) if late else ()),
        ),
        next=(_killed(),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=view.where,
        grounds=("helpers-idle", *(("one-replaced",) if late else ())),
    )


def _no_helper(view: ProcessView, views: list[tuple[Process, ProcessView]]) -> RankCause | None:
    if views:
        return None
    return RankCause(
        kind="helper-dead",
        cause=NoHelper(task=_task(view), where=where_of(view.where)),
        evidence=(NoChildren(pid=view.process.pid),),
        next=(_killed(),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=view.where,
        grounds=("no-helper-left",),
    )


def _waiting(view: ProcessView, views: list[tuple[Process, ProcessView]]) -> RankCause | None:
    commands = tuple(sorted({command_of(child) for child, _ in views})[:_COMMANDS_SHOWN])
    kind = "data-loading" if view.activity.word == "data-loading" else "subprocess-wait"
    return RankCause(
        kind=kind,
        cause=HelperWait(task=_task(view), where=where_of(view.where)),
        evidence=(HelperCommands(commands=commands),),
        next=(stacks_of(view.process.pid, "--threads"),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=view.where,
        grounds=("wait-on-stack",),
    )
