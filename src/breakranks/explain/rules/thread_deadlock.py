"""thread-deadlock: threads of one process wait for each other, or for a lock that no thread can release."""

from __future__ import annotations

from breakranks.explain.actions import stacks_of
from breakranks.explain.activity import Activity
from breakranks.explain.causes import Cause, Fact
from breakranks.explain.causes.thread_causes import (
    AtEndOfProgram,
    AwaitsObject,
    AwaitsUnknown,
    QueueUsers,
    ThreadDoes,
    ThreadsAtLocks,
    ThreadWaitsIn,
    UnknownLock,
)
from breakranks.explain.diagnosis import GUESS, LIKELY
from breakranks.explain.finding_parts import where_of
from breakranks.explain.frame_meanings import LOCKS
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.lock_owners import attach
from breakranks.explain.rules.rank_cause import MOMENT_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS, RankCause
from breakranks.explain.wait_chains import waited
from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import ThreadWait
from breakranks.snapshot.model import Thread

_NAMED_THREADS = 5
Threads = list[tuple[Thread, Activity]]


def reason(job: JobView, view: ProcessView) -> RankCause | None:
    if view.activity.word not in ("thread-wait", "exit") or view.others_move:
        return None
    python = [(thread, activity) for thread, activity in view.threads if thread.python]
    waiting = [pair for pair in python[:1] if pair[1].word == "thread-wait"]
    # A worker that waits for its next task, or wakes every few seconds, is idle. A worker at a lock is not.
    waiting += [(t, a) for t, a in python[1:] if a.op in LOCKS and t.call is not None and t.call.left is None]
    others = [(t, a) for t, a in python[1:] if a.word not in ("thread-wait", "idle")]
    limit = view.left
    inside = view.process.inside
    wait = inside.wait_of(view.thread.tid) if inside is not None and view.thread is not None else None
    return RankCause(
        kind="thread-deadlock",
        cause=_cause(view, python, waiting, wait, releasable=bool(others)),
        evidence=(
            *(ThreadWaitsIn(thread=t.name, op=a.op, where=where_of(a.where)) for t, a in waiting),
            *(ThreadDoes(thread=t.name, doing=a.doing(), placed=False) for t, a in others[:4]),
            *((UnknownLock(),) if wait is None else _users(view, wait)),
        ),
        next=(stacks_of(view.process.pid, "--threads"), *attach(job, view)),
        confidence=GUESS if others else LIKELY,
        needs=SLOW_SECONDS
        if limit is not None
        else MOMENT_SECONDS
        if not others and _asleep(job, view)
        else PATIENCE_SECONDS,
        where=view.where,
        grounds=("locks-unseen" if wait is None else "ender-unknown",),
        # Another active thread may release it, so this matters only if ranks wait.
        alone=not others or len(waiting) > 1,
    )


def _cause(view: ProcessView, python: Threads, waiting: Threads, wait: ThreadWait | None, *, releasable: bool) -> Cause:
    where = where_of(view.where)
    if view.activity.word == "exit":
        return AtEndOfProgram(threads=tuple(thread.name for thread, _ in python[1:]))
    if len(waiting) > 1:
        names = tuple(thread.name for thread, _ in waiting[:_NAMED_THREADS])
        return ThreadsAtLocks(count=len(waiting), threads=names, where=where)
    if wait is not None:
        return AwaitsObject(wait=waited(wait), where=where, ended=wait.ended)
    return AwaitsUnknown(what=_thing(view.activity.op), where=where, releasable=releasable)


def _users(view: ProcessView, wait: ThreadWait) -> tuple[Fact, ...]:
    if wait.kind != "Queue":
        return ()
    names = tuple(thread.name for thread, _ in view.threads if thread.tid in wait.users)
    return (QueueUsers(queue=wait.name, threads=names),)


def _asleep(job: JobView, view: ProcessView) -> bool:
    rank = job.rank_of(view.process)
    return rank is not None and job.asleep(RankSet([rank]))


def _thing(op: str) -> str:
    return {"Thread.join": "thread", "queue": "queue", "Future.result": "future"}.get(op, "lock")
