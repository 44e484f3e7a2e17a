"""rank-stopped, rank-exited: the process itself no longer runs."""

from __future__ import annotations

from breakranks.explain.actions import Advise, RunShell
from breakranks.explain.causes.process_causes import Ended, KernelState, OomKilled, Stopped
from breakranks.explain.diagnosis import CERTAIN
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import AT_ONCE_SECONDS, RankCause
from breakranks.snapshot.model import Process


def reason(job: JobView, view: ProcessView) -> RankCause | None:
    pid = view.process.pid
    if view.state == "T":
        return RankCause(
            kind="rank-stopped",
            cause=Stopped(by="signal"),
            evidence=(KernelState(pid=pid, state="T"),),
            next=(RunShell(script=f"kill -CONT {pid}"),),
            confidence=CERTAIN,
            needs=AT_ONCE_SECONDS,
            where=view.where,
            grounds=("kernel",),
        ).seen_twice(view.process, "T", job.sampled)
    if view.state == "t":
        return RankCause(
            kind="rank-stopped",
            cause=Stopped(by="debugger"),
            evidence=(KernelState(pid=pid, state="t"),),
            next=(RunShell(script=f"grep TracerPid /proc/{pid}/status"),),
            confidence=CERTAIN,
            needs=AT_ONCE_SECONDS,
            where=view.where,
            grounds=("kernel",),
        )
    if view.state in ("Z", "X"):
        return RankCause(
            kind="rank-exited",
            cause=Ended(zombie=view.state == "Z"),
            evidence=(KernelState(pid=pid, state=view.state), *oom_evidence(job, view.process)),
            next=(Advise(what="log-or-kernel"),),
            confidence=CERTAIN,
            needs=AT_ONCE_SECONDS,
            where=None,
            grounds=("kernel",),
        )
    return None


def oom_evidence(job: JobView, process: Process) -> tuple[OomKilled, ...]:
    """Return the lines of the kernel's log that report an out-of-memory kill of this process."""
    return tuple(
        OomKilled(line=kill)
        for host in job.snapshot.hosts
        if job.host_of(process) in ("", host.name)
        for pid, kill in zip(host.oom_killed, host.oom_kills, strict=False)
        if pid == process.pid
    )
