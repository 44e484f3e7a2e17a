"""rank-stopped, rank-exited: the process itself does not run any more."""

from __future__ import annotations

from breakranks.explain.actions import Advise, RunShell
from breakranks.explain.causes.process_causes import Ended, KernelState, OomKilled, Stopped
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
            cause=Stopped(by="signal"),
            evidence=(KernelState(pid=pid, state="T"),),
            next=(RunShell(script=f"kill -CONT {pid}"),),
            confidence=CERTAIN,
            needs=AT_ONCE_SECONDS,
            where=one.where,
            grounds=("kernel",),
        )
    if one.state == "t":
        return RankCause(
            kind="rank-stopped",
            cause=Stopped(by="debugger"),
            evidence=(KernelState(pid=pid, state="t"),),
            next=(RunShell(script=f"grep TracerPid /proc/{pid}/status"),),
            confidence=CERTAIN,
            needs=AT_ONCE_SECONDS,
            where=one.where,
            grounds=("kernel",),
        )
    if one.state in ("Z", "X"):
        return RankCause(
            kind="rank-exited",
            cause=Ended(zombie=one.state == "Z"),
            evidence=(KernelState(pid=pid, state=one.state), *oom_evidence(case, one.process)),
            next=(Advise(what="log-or-kernel"),),
            confidence=CERTAIN,
            needs=AT_ONCE_SECONDS,
            where=None,
            grounds=("kernel",),
        )
    return None


def oom_evidence(case: JobView, process: Process) -> tuple[OomKilled, ...]:
    """Lines of the kernel's log that say it killed this process for want of memory."""
    return tuple(
        OomKilled(line=kill)
        for host in case.snapshot.hosts
        if case.host_of(process) in ("", host.name)
        for kill in host.oom_kills
        if f"process {process.pid} " in kill
    )
