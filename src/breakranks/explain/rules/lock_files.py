"""stale-lock-file, lock-held: a file stands in the way."""

from __future__ import annotations

import shlex

from breakranks.explain import phrases
from breakranks.explain.diagnosis import CERTAIN, LIKELY
from breakranks.explain.job_view import JobView, is_local
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import AT_ONCE_SECONDS, PATIENCE_SECONDS, RankCause
from breakranks.rankset import RankSet


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    if one.activity.word != "file-lock":
        return None
    lock, holder = case.lock_holder(one)
    what = one.activity.op
    if lock is None:
        return RankCause(
            kind="lock-held",
            text=f"waits for a lock file ({what}), in {phrases.place(one.where)}",
            evidence=("which file cannot be seen from outside",),
            next=(f"ls -l /proc/{one.process.pid}/fd",),
            confidence=LIKELY,
            needs=PATIENCE_SECONDS,
            where=one.where,
            because="the stack shows the wait; the file is not known",
        )
    age = f", made {phrases.duration(lock.age)} ago" if lock.age is not None else ""
    if not lock.holder and holder is None:
        # A disk may be shared, and of another host only the job's own processes were looked at.
        shared = case.several and not is_local(lock.path)
        return RankCause(
            kind="stale-lock-file",
            text=f"waits for the lock file {lock.path}, which no process holds{age}: it was left behind",
            evidence=(
                f"{lock.path} exists{age}",
                f"no process on {case.host_of(one.process) or 'this host'} has it open or locked"
                + (", and no rank on another" if shared else ""),
                f"the wait is in {what}, called from {phrases.place(one.where)}",
            ),
            next=(f"rm {shlex.quote(lock.path)}",),
            confidence=LIKELY if lock.kind == "own" or shared else CERTAIN,
            # Its maker opens the file at once after making it; give it that moment. What a lock of the user's
            # own making means cannot be known: watch it.
            needs=AT_ONCE_SECONDS if (lock.age or 0) > 1 and lock.kind != "own" else PATIENCE_SECONDS,
            where=one.where,
            because="the file is there and nobody has it open",
        )
    if lock.holder:
        who = f"process {lock.holder} ({phrases.command(lock.holder_command)})"
        who = f"rank {holder}, {who}" if holder is not None else who
    else:
        assert holder is not None
        who = case.who(RankSet([holder]))
    return RankCause(
        kind="lock-held",
        text=f"waits for the lock {lock.path}, held by {who}{age}",
        evidence=(f"{what} waits for {lock.path}", f"held by {who}"),
        next=(f"breakranks stacks pid:{lock.holder}" if lock.holder else f"breakranks stacks --rank {holder}",),
        confidence=CERTAIN,
        needs=PATIENCE_SECONDS,
        where=one.where,
        because="/proc shows who has the file" if lock.holder else "a rank of another host has the file open",
    )
