"""rank-stopped, rank-exited: the process itself does not run any more."""

from __future__ import annotations

from breakranks.explain.diagnosis import CERTAIN
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import AT_ONCE_SECONDS, RankCause
from breakranks.snapshot.model import Process


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    pid = one.process.pid
    if one.state == "T":
        return RankCause(
            kind="rank-stopped",
            text="is stopped by a signal (state T)",
            evidence=(f"process {pid} is in state T: it was sent SIGSTOP or SIGTSTP and does not run",),
            next=(f"kill -CONT {pid}",),
            confidence=CERTAIN,
            needs=AT_ONCE_SECONDS,
            where=one.where,
            because="the kernel says so",
        )
    if one.state == "t":
        return RankCause(
            kind="rank-stopped",
            text="is stopped by a debugger (state t)",
            evidence=(f"process {pid} is in state t: another process traces it and holds it",),
            next=(f"grep TracerPid /proc/{pid}/status",),
            confidence=CERTAIN,
            needs=AT_ONCE_SECONDS,
            where=one.where,
            because="the kernel says so",
        )
    if one.state in ("Z", "X"):
        return RankCause(
            kind="rank-exited",
            text="has ended" + (" and its launcher has not noticed (zombie)" if one.state == "Z" else ""),
            evidence=(
                f"process {pid} is {'a zombie' if one.state == 'Z' else 'gone'}",
                *oom_evidence(case, one.process),
            ),
            next=("look at the end of its log; whether the kernel killed it: dmesg | grep -i 'killed process'",),
            confidence=CERTAIN,
            needs=AT_ONCE_SECONDS,
            where=None,
            because="the kernel says so",
        )
    return None


def oom_evidence(case: JobView, process: Process) -> tuple[str, ...]:
    """Lines of the kernel's log that say it killed this process for want of memory."""
    return tuple(
        f"the kernel killed it for want of memory: {kill}"
        for host in case.snapshot.hosts
        if case.host_of(process) in ("", host.name)
        for kill in host.oom_kills
        if f"process {process.pid} " in kill
    )
