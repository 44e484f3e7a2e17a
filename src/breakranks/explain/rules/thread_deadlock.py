"""thread-deadlock: threads of one process wait for each other, or for a lock that nobody can release."""

from __future__ import annotations

from breakranks.explain import phrases
from breakranks.explain.diagnosis import GUESS, LIKELY
from breakranks.explain.introspected import thing
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.lock_owners import attach
from breakranks.explain.rules.rank_cause import MOMENT_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS, RankCause
from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import ThreadWait

LOCKS = frozenset({"lock", "logging lock", "import lock"})


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    if one.activity.word not in ("thread-wait", "exit") or one.others_move:
        return None
    python = [(thread, activity) for thread, activity in one.threads if thread.python]
    waiting = [pair for pair in python[:1] if pair[1].word == "thread-wait"]
    # A worker that waits for its next task, or wakes every few seconds, is idle; one at a lock is not.
    waiting += [(t, a) for t, a in python[1:] if a.op in LOCKS and t.call is not None and t.call.left is None]
    others = [(t, a) for t, a in python[1:] if a.word not in ("thread-wait", "idle")]
    evidence = tuple(
        f"thread {thread.name} waits ({activity.op}) in {phrases.place(activity.where)}" for thread, activity in waiting
    ) + tuple(f"thread {thread.name} is {activity.phrase}" for thread, activity in others[:4])
    limit = one.left
    inside = one.process.inside
    wait = inside.wait_of(one.thread.tid) if inside is not None and one.thread is not None else None
    if one.activity.word == "exit":
        names = phrases.listed([thread.name for thread, _ in python[1:]]) or "its threads"
        text = f"has reached the end of its program and waits for {names} to end"
    elif len(waiting) > 1:
        names = phrases.listed([thread.name for thread, _ in waiting[:5]])
        text = f"has {len(waiting)} threads that wait for locks ({names}), the main one in {phrases.place(one.where)}"
    elif wait is not None:
        text = f"waits for {_told(wait)} in {phrases.place(one.where)}{_lost(one, wait)}"
    else:
        text = f"waits for a {_thing(one.activity.op)} that no thread of it can release, in {phrases.place(one.where)}"
        if others:
            text = f"waits for a {_thing(one.activity.op)} in {phrases.place(one.where)}"
    return RankCause(
        kind="thread-deadlock",
        text=text,
        evidence=(
            *evidence,
            *(("which lock it is cannot be seen from outside",) if wait is None else _users(one, wait)),
        ),
        next=(f"breakranks stacks pid:{one.process.pid} --threads", *attach(case, one)),
        confidence=GUESS if others else LIKELY,
        needs=SLOW_SECONDS
        if limit is not None
        else MOMENT_SECONDS
        if not others and _asleep(case, one)
        else PATIENCE_SECONDS,
        where=one.where,
        because="the threads that wait can be seen, the locks cannot"
        if wait is None
        else "who should end the wait is not known",
        # Another thread that does something may well let it go: only a matter of note if ranks wait.
        alone=not others or len(waiting) > 1,
    )


def _told(wait: ThreadWait) -> str:
    """``batches (Queue), which is empty``"""
    which = "to which" if wait.kind == "Barrier" else "which is"
    return f"{thing(wait)}, {which} {wait.state}," if wait.state else thing(wait)


def _lost(one: ProcessView, wait: ThreadWait) -> str:
    """Those that might have ended the wait and cannot any more."""
    if not wait.ended:
        return ""
    names = phrases.listed(list(wait.ended))
    return f"; thread {names}, which it has started, has ended"


def _users(one: ProcessView, wait: ThreadWait) -> tuple[str, ...]:
    if wait.kind != "Queue":
        return ()
    names = [thread.name for thread, _ in one.threads if thread.tid in wait.users]
    if not names:
        return (f"no other thread of the process has {wait.name or 'the queue'} in its variables",)
    return (f"{phrases.listed(names)} {'has' if len(names) == 1 else 'have'} {wait.name or 'the queue'} too",)


def _asleep(case: JobView, one: ProcessView) -> bool:
    rank = case.rank_of(one.process)
    return rank is not None and case.asleep(RankSet([rank]))


def _thing(op: str) -> str:
    return {"Thread.join": "thread", "queue": "queue", "Future.result": "future"}.get(op, "lock")
