"""stale-lock-file, lock-held: a file stands in the way."""

from __future__ import annotations

import shlex

from breakranks.explain import words
from breakranks.explain.case import Case
from breakranks.explain.look import Look
from breakranks.explain.model import CERTAIN, LIKELY
from breakranks.explain.rules.reason import AT_ONCE, PATIENCE, Reason


def reason(case: Case, one: Look) -> Reason | None:
    if one.activity.word != "file-lock":
        return None
    lock, holder = case.lock_holder(one)
    what = one.activity.op
    if lock is None:
        return Reason(
            "lock-held",
            f"waits for a lock file ({what}), in {words.place(one.where)}",
            ("which file cannot be seen from outside",),
            (f"ls -l /proc/{one.process.pid}/fd",),
            LIKELY,
            PATIENCE,
            one.where,
            "the stack shows the wait; the file is not known",
        )
    age = f", made {words.duration(lock.age)} ago" if lock.age is not None else ""
    if not lock.holder:
        return Reason(
            "stale-lock-file",
            f"waits for the lock file {lock.path}, which no process holds{age}: it was left behind",
            (
                f"{lock.path} exists{age}",
                "no process on this host has it open or locked",
                f"the wait is in {what}, called from {words.place(one.where)}",
            ),
            (f"rm {shlex.quote(lock.path)}",),
            LIKELY if lock.kind == "own" else CERTAIN,
            # Its maker opens the file at once after making it; give it that moment. What a lock of the user's
            # own making means cannot be known: watch it.
            AT_ONCE if (lock.age or 0) > 1 and lock.kind != "own" else PATIENCE,
            one.where,
            "the file is there and nobody has it open",
        )
    who = f"process {lock.holder} ({words.command(lock.holder_command)})"
    if holder is not None:
        who = f"rank {holder}, {who}"
    return Reason(
        "lock-held",
        f"waits for the lock {lock.path}, held by {who}{age}",
        (f"{what} waits for {lock.path}", f"held by {who}"),
        (f"breakranks stacks pid:{lock.holder}",),
        CERTAIN,
        PATIENCE,
        one.where,
        "/proc shows who has the file",
    )
