"""thread-deadlock: threads of one process wait for each other, or for a lock that nobody can release."""

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
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.lock_owners import attach
from breakranks.explain.rules.rank_cause import MOMENT_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS, RankCause
from breakranks.explain.values import where_of
from breakranks.explain.wait_chains import waited
from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import ThreadWait
from breakranks.snapshot.model import Thread

LOCKS = frozenset({"lock", "logging lock", "import lock"})
_NAMED_THREADS = 5
Threads = list[tuple[Thread, Activity]]


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    if one.activity.word not in ("thread-wait", "exit") or one.others_move:
        return None
    python = [(thread, activity) for thread, activity in one.threads if thread.python]
    waiting = [pair for pair in python[:1] if pair[1].word == "thread-wait"]
    # A worker that waits for its next task, or wakes every few seconds, is idle; one at a lock is not.
    waiting += [(t, a) for t, a in python[1:] if a.op in LOCKS and t.call is not None and t.call.left is None]
    others = [(t, a) for t, a in python[1:] if a.word not in ("thread-wait", "idle")]
    limit = one.left
    inside = one.process.inside
    wait = inside.wait_of(one.thread.tid) if inside is not None and one.thread is not None else None
    return RankCause(
        kind="thread-deadlock",
        cause=_cause(one, python, waiting, wait, releasable=bool(others)),
        evidence=(
            *(ThreadWaitsIn(thread=t.name, op=a.op, where=where_of(a.where)) for t, a in waiting),
            *(ThreadDoes(thread=t.name, doing=a.doing(), placed=False) for t, a in others[:4]),
            *((UnknownLock(),) if wait is None else _users(one, wait)),
        ),
        next=(stacks_of(one.process.pid, "--threads"), *attach(case, one)),
        confidence=GUESS if others else LIKELY,
        needs=SLOW_SECONDS
        if limit is not None
        else MOMENT_SECONDS
        if not others and _asleep(case, one)
        else PATIENCE_SECONDS,
        where=one.where,
        grounds=("locks-unseen" if wait is None else "ender-unknown",),
        # Another thread that does something may well let it go: only a matter of note if ranks wait.
        alone=not others or len(waiting) > 1,
    )


def _cause(one: ProcessView, python: Threads, waiting: Threads, wait: ThreadWait | None, *, releasable: bool) -> Cause:
    where = where_of(one.where)
    if one.activity.word == "exit":
        return AtEndOfProgram(threads=tuple(thread.name for thread, _ in python[1:]))
    if len(waiting) > 1:
        names = tuple(thread.name for thread, _ in waiting[:_NAMED_THREADS])
        return ThreadsAtLocks(count=len(waiting), threads=names, where=where)
    if wait is not None:
        return AwaitsObject(wait=waited(wait), where=where, ended=wait.ended)
    return AwaitsUnknown(what=_thing(one.activity.op), where=where, releasable=releasable)


def _users(one: ProcessView, wait: ThreadWait) -> tuple[Fact, ...]:
    if wait.kind != "Queue":
        return ()
    names = tuple(thread.name for thread, _ in one.threads if thread.tid in wait.users)
    return (QueueUsers(queue=wait.name, threads=names),)


def _asleep(case: JobView, one: ProcessView) -> bool:
    rank = case.rank_of(one.process)
    return rank is not None and case.asleep(RankSet([rank]))


def _thing(op: str) -> str:
    return {"Thread.join": "thread", "queue": "queue", "Future.result": "future"}.get(op, "lock")
