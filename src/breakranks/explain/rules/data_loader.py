"""data-loading, helper-dead: a rank waits for a process that it started to work for it."""

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
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView, look
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
from breakranks.explain.values import where_of
from breakranks.snapshot.introspection import Loader
from breakranks.snapshot.model import Process, family

_POOLS = ("multiprocessing.Pool", "ProcessPoolExecutor", "joblib")
_SERVANTS = ("resource_tracker", "forkserver")
_SAMPLES_SHOWN = 16
_COMMANDS_SHOWN = 3


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
        cause=WorkerGone(worker=loader.worker, pid=loader.pid, where=where_of(one.where)),
        evidence=(BatchDue(batch=loader.batch, worker=loader.worker, pid=loader.pid, gone=True),),
        next=(_killed(loader.pid),),
        confidence=CERTAIN,
        needs=PATIENCE_SECONDS,
        where=one.where,
        grounds=("loader-says",),
    )


def _killed(pid: int | None = None) -> Action:
    """To see whether the kernel killed a process."""
    which = "" if pid is None else f" {pid}"
    return RunShell(script=f"dmesg | grep -i 'killed process{which}'")


def _sample(child: Process) -> ReadsSample | None:
    """Which sample a worker is at."""
    item = child.inside.item if child.inside is not None else None
    if item is None or item.index is None:
        return None
    samples = tuple(item.samples[:_SAMPLES_SHOWN])
    more = len(item.samples) > _SAMPLES_SHOWN
    return ReadsSample(index=item.index, batch=item.batch, samples=samples, more=more)


def _helpers(process: Process) -> list[Process]:
    return [child for child in family(process) if child.pid != process.pid]


def _task(one: ProcessView) -> str:
    """What it waits in; empty: it loads data."""
    return "" if one.activity.word == "data-loading" else one.activity.op


def _dead(case: JobView, one: ProcessView, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    dead = [child for child, _ in looks if child.state in "ZX"]
    if not dead:
        return None
    pids = tuple(child.pid for child in dead)
    return RankCause(
        kind="helper-dead",
        cause=HelperDead(task=_task(one), pids=pids, where=where_of(one.where)),
        evidence=(
            HelperZombies(pids=pids, parent=one.process.pid),
            *stopped_process.oom_evidence(case, dead[0]),
        ),
        next=(_killed(pids[0]),),
        confidence=CERTAIN if len(dead) == len(looks) else LIKELY,
        needs=AT_ONCE_SECONDS,
        where=one.where,
        grounds=("helper-dead",),
    )


def _stuck(case: JobView, one: ProcessView, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    """A helper that stands somewhere: its own stack is the proof."""
    kind = "data-loading" if one.activity.word == "data-loading" else "subprocess-wait"
    for child, _ in looks:
        if child.state in "Tt":
            return RankCause(
                kind=kind,
                cause=HelperStopped(task=_task(one), pid=child.pid, state=child.state),
                evidence=(HelperState(pid=child.pid, state=child.state),),
                next=(RunShell(script=f"kill -CONT {child.pid}"),),
                confidence=CERTAIN,
                needs=AT_ONCE_SECONDS,
                where=one.where,
                grounds=("helper-stopped",),
            )
    working = [(child, its) for child, its in looks if its.activity.word not in ("idle", "unknown") and child.python]
    if not working:
        return None
    child, its = max(working, key=lambda pair: pair[1].stands)
    naps = its.activity.word == "sleep" and its.left is not None and its.left <= LONG_SLEEP_SECONDS
    moving = its.moved or its.busy > 0.5 or naps or works(child)
    evidence: list[Fact] = [HelperDoing(pid=child.pid, doing=its.doing)]
    alone = sum(1 for t, _ in its.threads if t.python) == 1
    if its.activity.word == "thread-wait" and alone and "--multiprocessing-fork" not in child.command:
        evidence.append(ForkedWithLock())
    if one.activity.word == "helper-wait" and its.activity.word in ("thread-wait", "helper-wait"):
        kind = "thread-deadlock"  # it waits for a lock, or for us: the two wait for each other
    loader = _owed(one)
    worker = None
    if loader is not None and loader.pid == child.pid:
        worker = loader.worker
        evidence.append(BatchDue(batch=loader.batch, worker=loader.worker, pid=loader.pid))
    sample = _sample(child)
    evidence += [sample] if sample is not None else []
    return RankCause(
        kind=kind,
        cause=HelperStuck(
            task=_task(one),
            pid=child.pid,
            doing=its.doing,
            worker=worker,
            sample=sample.index if sample is not None else None,
        ),
        evidence=tuple(evidence),
        next=(stacks_of(child.pid, "--native"), *attach(case, one)),
        confidence=LIKELY if moving or one.activity.word == "helper-wait" else CERTAIN,
        needs=MOVING_SECONDS if moving else PATIENCE_SECONDS,
        where=its.where or one.where,
        grounds=("helper-stack",),
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
    return RankCause(
        kind="helper-dead",
        cause=TaskLost(op=one.activity.op, where=where_of(one.where)),
        evidence=(
            HelpersIdle(count=len(looks)),
            *((HelperReplaced(seconds=starts[-1] - starts[0]),) if late else ()),
        ),
        next=(_killed(),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=one.where,
        grounds=("helpers-idle", *(("one-replaced",) if late else ())),
    )


def _nobody(one: ProcessView, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    if looks:
        return None
    return RankCause(
        kind="helper-dead",
        cause=NoHelper(task=_task(one), where=where_of(one.where)),
        evidence=(NoChildren(pid=one.process.pid),),
        next=(_killed(),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=one.where,
        grounds=("nobody-left",),
    )


def _waiting(one: ProcessView, looks: list[tuple[Process, ProcessView]]) -> RankCause | None:
    commands = tuple(sorted({command_of(child) for child, _ in looks})[:_COMMANDS_SHOWN])
    kind = "data-loading" if one.activity.word == "data-loading" else "subprocess-wait"
    return RankCause(
        kind=kind,
        cause=HelperWait(task=_task(one), where=where_of(one.where)),
        evidence=(HelperCommands(commands=commands),),
        next=(stacks_of(one.process.pid, "--threads"),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=one.where,
        grounds=("wait-on-stack",),
    )
