"""stale-lock-file, lock-held: a file stands in the way."""

from __future__ import annotations

import shlex

from breakranks.explain import words
from breakranks.explain.case import Case, is_local
from breakranks.explain.look import Look
from breakranks.explain.model import CERTAIN, LIKELY
from breakranks.explain.rules.reason import AT_ONCE, PATIENCE, Reason
from breakranks.rankset import RankSet


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
    if not lock.holder and holder is None:
        # A disk may be shared, and of another host only the job's own processes were looked at.
        shared = case.several and not is_local(lock.path)
        return Reason(
            "stale-lock-file",
            f"waits for the lock file {lock.path}, which no process holds{age}: it was left behind",
            (
                f"{lock.path} exists{age}",
                f"no process on {case.host_of(one.process) or 'this host'} has it open or locked"
                + (", and no rank on another" if shared else ""),
                f"the wait is in {what}, called from {words.place(one.where)}",
            ),
            (f"rm {shlex.quote(lock.path)}",),
            LIKELY if lock.kind == "own" or shared else CERTAIN,
            # Its maker opens the file at once after making it; give it that moment. What a lock of the user's
            # own making means cannot be known: watch it.
            AT_ONCE if (lock.age or 0) > 1 and lock.kind != "own" else PATIENCE,
            one.where,
            "the file is there and nobody has it open",
        )
    if lock.holder:
        who = f"process {lock.holder} ({words.command(lock.holder_command)})"
        who = f"rank {holder}, {who}" if holder is not None else who
    else:
        assert holder is not None
        who = case.who(RankSet([holder]))
    return Reason(
        "lock-held",
        f"waits for the lock {lock.path}, held by {who}{age}",
        (f"{what} waits for {lock.path}", f"held by {who}"),
        (f"breakranks stacks pid:{lock.holder}" if lock.holder else f"breakranks stacks --rank {holder}",),
        CERTAIN,
        PATIENCE,
        one.where,
        "/proc shows who has the file" if lock.holder else "a rank of another host has the file open",
    )
