"""rank-stopped, rank-exited: the process itself does not run any more."""

from __future__ import annotations

from breakranks.explain.case import Case
from breakranks.explain.look import Look
from breakranks.explain.model import CERTAIN
from breakranks.explain.rules.reason import AT_ONCE, Reason
from breakranks.snapshot.model import Process


def reason(case: Case, one: Look) -> Reason | None:
    pid = one.process.pid
    if one.state == "T":
        return Reason(
            "rank-stopped",
            "is stopped by a signal (state T)",
            (f"process {pid} is in state T: it was sent SIGSTOP or SIGTSTP and does not run",),
            (f"kill -CONT {pid}",),
            CERTAIN,
            AT_ONCE,
            one.where,
            "the kernel says so",
        )
    if one.state == "t":
        return Reason(
            "rank-stopped",
            "is stopped by a debugger (state t)",
            (f"process {pid} is in state t: another process traces it and holds it",),
            (f"grep TracerPid /proc/{pid}/status",),
            CERTAIN,
            AT_ONCE,
            one.where,
            "the kernel says so",
        )
    if one.state in ("Z", "X"):
        return Reason(
            "rank-exited",
            "has ended" + (" and its launcher has not noticed (zombie)" if one.state == "Z" else ""),
            (f"process {pid} is {'a zombie' if one.state == 'Z' else 'gone'}", *oom_evidence(case, one.process)),
            ("look at the end of its log; whether the kernel killed it: dmesg | grep -i 'killed process'",),
            CERTAIN,
            AT_ONCE,
            None,
            "the kernel says so",
        )
    return None


def oom_evidence(case: Case, process: Process) -> tuple[str, ...]:
    """Lines of the kernel's log that say it killed this process for want of memory."""
    return tuple(
        f"the kernel killed it for want of memory: {kill}"
        for host in case.snapshot.hosts
        if case.host_of(process) in ("", host.name)
        for kill in host.oom_kills
        if f"process {process.pid} " in kill
    )
