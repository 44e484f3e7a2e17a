"""stale-lock-file, lock-held: a file stands in the way."""

from __future__ import annotations

import shlex

from breakranks.explain.actions import RunBreakranks, RunShell, stacks_of
from breakranks.explain.causes.file_causes import (
    FileExists,
    FileHeldBy,
    LockFileHeld,
    LockHolder,
    NobodyHasFile,
    StaleLockFile,
    UnknownFile,
    UnknownLockFile,
    WaitsForFile,
    WaitsInCall,
)
from breakranks.explain.diagnosis import CERTAIN, LIKELY
from breakranks.explain.job_view import JobView, is_local
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import AT_ONCE_SECONDS, PATIENCE_SECONDS, RankCause
from breakranks.explain.values import where_of
from breakranks.rankset import RankSet
from breakranks.snapshot.model import FileLock


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    if one.activity.word != "file-lock":
        return None
    lock, holder = case.lock_holder(one)
    if lock is None:
        return _unknown(one)
    if not lock.holder and holder is None:
        return _left_behind(case, one, lock)
    return _held(case, one, lock, holder)


def _unknown(one: ProcessView) -> RankCause:
    return RankCause(
        kind="lock-held",
        cause=UnknownLockFile(op=one.activity.op, where=where_of(one.where)),
        evidence=(UnknownFile(),),
        next=(RunShell(script=f"ls -l /proc/{one.process.pid}/fd"),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=one.where,
        grounds=("file-unknown",),
    )


def _left_behind(case: JobView, one: ProcessView, lock: FileLock) -> RankCause:
    # A disk may be shared, and of another host only the job's own processes were looked at.
    shared = case.several and not is_local(lock.path)
    return RankCause(
        kind="stale-lock-file",
        cause=StaleLockFile(path=lock.path, age=lock.age),
        evidence=(
            FileExists(path=lock.path, age=lock.age),
            NobodyHasFile(host=case.host_of(one.process), shared=shared),
            WaitsInCall(op=one.activity.op, where=where_of(one.where)),
        ),
        next=(RunShell(script=f"rm {shlex.quote(lock.path)}"),),
        confidence=LIKELY if lock.kind == "own" or shared else CERTAIN,
        # Its maker opens the file at once after making it; give it that moment. What a lock of the user's
        # own making means cannot be known: watch it.
        needs=AT_ONCE_SECONDS if (lock.age or 0) > 1 and lock.kind != "own" else PATIENCE_SECONDS,
        where=one.where,
        grounds=("file-unheld",),
    )


def _held(case: JobView, one: ProcessView, lock: FileLock, rank: int | None) -> RankCause:
    holder = LockHolder(
        pid=lock.holder,
        command=lock.holder_command,
        rank=rank,
        subject=case.subject(RankSet([rank])) if rank is not None else None,
    )
    return RankCause(
        kind="lock-held",
        cause=LockFileHeld(path=lock.path, age=lock.age, holder=holder),
        evidence=(WaitsForFile(op=one.activity.op, path=lock.path), FileHeldBy(holder=holder)),
        next=(stacks_of(lock.holder) if lock.holder else RunBreakranks(command="stacks", args=("--rank", str(rank))),),
        confidence=CERTAIN,
        needs=PATIENCE_SECONDS,
        where=one.where,
        grounds=("proc-shows-holder" if lock.holder else "held-on-other-host",),
    )
