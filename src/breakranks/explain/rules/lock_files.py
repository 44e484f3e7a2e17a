"""stale-lock-file, lock-held: a rank waits for a lock file."""

from __future__ import annotations

import shlex

from breakranks.explain.actions import RunBreakranks, RunShell, stacks_of
from breakranks.explain.causes.file_causes import (
    FileExists,
    FileHeldBy,
    FileNotOpen,
    LockFileHeld,
    LockHolder,
    StaleLockFile,
    UnknownFile,
    UnknownLockFile,
    WaitsForFile,
    WaitsInCall,
)
from breakranks.explain.diagnosis import CERTAIN, LIKELY
from breakranks.explain.finding_parts import where_of
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rank_views import is_local
from breakranks.explain.rules.rank_cause import AT_ONCE_SECONDS, PATIENCE_SECONDS, RankCause
from breakranks.rankset import RankSet
from breakranks.snapshot.model import FileLock


def reason(job: JobView, view: ProcessView) -> RankCause | None:
    if view.activity.word != "file-lock":
        return None
    lock, holder = job.lock_holder(view)
    if lock is None:
        return _unknown(view)
    if not lock.holder and holder is None:
        return _left_behind(job, view, lock)
    return _held(job, view, lock, holder)


def _unknown(view: ProcessView) -> RankCause:
    return RankCause(
        kind="lock-held",
        cause=UnknownLockFile(op=view.activity.op, where=where_of(view.where)),
        evidence=(UnknownFile(),),
        next=(RunShell(script=f"ls -l /proc/{view.process.pid}/fd"),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=view.where,
        grounds=("file-unknown",),
    )


def _left_behind(job: JobView, view: ProcessView, lock: FileLock) -> RankCause:
    # A disk may be shared, and on other hosts only processes of the job were inspected.
    shared = job.several and not is_local(lock.path)
    return RankCause(
        kind="stale-lock-file",
        cause=StaleLockFile(path=lock.path, age=lock.age),
        evidence=(
            FileExists(path=lock.path, age=lock.age),
            FileNotOpen(host=job.host_of(view.process), shared=shared),
            WaitsInCall(op=view.activity.op, where=where_of(view.where)),
        ),
        next=(RunShell(script=f"rm {shlex.quote(lock.path)}"),),
        confidence=LIKELY if lock.kind == "own" or shared else CERTAIN,
        needs=_needs(view, lock),
        where=view.where,
        grounds=("file-unheld",),
        about=lock.path,
    )


def _needs(view: ProcessView, lock: FileLock) -> float:
    # The process that makes the file opens it at once, so allow for that moment. The meaning of a lock of the user's
    # own is not known, so watch it for longer.
    if (lock.age or 0) > 1 and lock.kind != "own":
        return AT_ONCE_SECONDS
    if lock.age is None or lock.age >= PATIENCE_SECONDS:
        return PATIENCE_SECONDS
    # A file that was made or written a moment ago has a process that lives: it must grow old while the rank waits.
    return max(PATIENCE_SECONDS, view.stands + PATIENCE_SECONDS - lock.age)


def _held(job: JobView, view: ProcessView, lock: FileLock, rank: int | None) -> RankCause:
    holder = LockHolder(
        pid=lock.holder,
        command=lock.holder_command,
        rank=rank,
        subject=job.subject(RankSet([rank])) if rank is not None else None,
    )
    return RankCause(
        kind="lock-held",
        cause=LockFileHeld(path=lock.path, age=lock.age, holder=holder),
        evidence=(WaitsForFile(op=view.activity.op, path=lock.path), FileHeldBy(holder=holder)),
        next=(stacks_of(lock.holder) if lock.holder else RunBreakranks(command="stacks", args=("--rank", str(rank))),),
        confidence=CERTAIN,
        needs=PATIENCE_SECONDS,
        where=view.where,
        grounds=("proc-shows-holder" if lock.holder else "held-on-other-host",),
        about=lock.path,
    )
