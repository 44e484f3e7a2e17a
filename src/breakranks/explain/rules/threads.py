"""thread-deadlock: threads of one process wait for each other, or for a lock that nobody can release."""

from __future__ import annotations

from breakranks.explain import words
from breakranks.explain.case import Case
from breakranks.explain.look import Look
from breakranks.explain.model import GUESS, LIKELY
from breakranks.explain.rules.reason import MOMENT, PATIENCE, SLOW, Reason
from breakranks.rankset import RankSet

LOCKS = frozenset({"lock", "logging lock", "import lock"})


def reason(case: Case, one: Look) -> Reason | None:
    if one.activity.word not in ("thread-wait", "exit") or one.others_move:
        return None
    python = [(thread, activity) for thread, activity in one.threads if thread.python]
    waiting = [pair for pair in python[:1] if pair[1].word == "thread-wait"]
    # A worker that waits for its next task, or wakes every few seconds, is idle; one at a lock is not.
    waiting += [(t, a) for t, a in python[1:] if a.op in LOCKS and t.call is not None and t.call.left is None]
    others = [(t, a) for t, a in python[1:] if a.word not in ("thread-wait", "idle")]
    evidence = tuple(
        f"thread {thread.name} waits ({activity.op}) in {words.place(activity.where)}" for thread, activity in waiting
    ) + tuple(f"thread {thread.name} is {activity.phrase}" for thread, activity in others[:4])
    limit = one.left
    if one.activity.word == "exit":
        names = words.listed([thread.name for thread, _ in python[1:]]) or "its threads"
        text = f"has reached the end of its program and waits for {names} to end"
    elif len(waiting) > 1:
        names = words.listed([thread.name for thread, _ in waiting[:5]])
        text = f"has {len(waiting)} threads that wait for locks ({names}), the main one in {words.place(one.where)}"
    else:
        text = f"waits for a {_thing(one.activity.op)} that no thread of it can release, in {words.place(one.where)}"
        if others:
            text = f"waits for a {_thing(one.activity.op)} in {words.place(one.where)}"
    return Reason(
        "thread-deadlock",
        text,
        (*evidence, "which lock it is cannot be seen from outside"),
        (f"breakranks stacks pid:{one.process.pid} --threads",),
        GUESS if others else LIKELY,
        SLOW if limit is not None else MOMENT if not others and _asleep(case, one) else PATIENCE,
        one.where,
        "the threads that wait can be seen, the locks cannot",
        # Another thread that does something may well let it go: only a matter of note if ranks wait.
        alone=not others or len(waiting) > 1,
    )


def _asleep(case: Case, one: Look) -> bool:
    rank = case.by_pid.get(one.process.pid)
    return rank is not None and case.asleep(RankSet([rank]))


def _thing(op: str) -> str:
    return {"Thread.join": "thread", "queue": "queue", "Future.result": "future"}.get(op, "lock")
