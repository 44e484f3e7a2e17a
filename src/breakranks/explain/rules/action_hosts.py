"""On which host to run a command, for a job on several hosts."""

from __future__ import annotations

from msgspec.structs import replace

from breakranks.explain.actions import Action, Advise, RunBreakranks, RunShell
from breakranks.explain.diagnosis import Finding
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import RankCause
from breakranks.rankset import RankSet

_MAX_NAMED_HOSTS = 6
# Advice to be followed on the host of the process.
_THERE = frozenset({"answer-prompt", "log-or-kernel"})


def at_host(job: JobView, view: ProcessView, reason: RankCause) -> RankCause:
    """Return the cause with actions that name the host."""
    host = job.host_of(view.process)
    if not host:
        return reason
    return reason._replace(next=tuple(_on_host(job, host, action) for action in reason.next))


def with_target(finding: Finding, target: str) -> Finding:
    """Return the finding with breakranks commands that reach the job again: ``target`` is in shell words."""
    following = tuple(
        replace(action, target=target) if isinstance(action, RunBreakranks) and not action.pid else action
        for action in finding.next
    )
    return replace(finding, next=following)


def to_continue(job: JobView, ranks: RankSet) -> tuple[Action, ...]:
    """Return the actions that resume stopped ranks, one for each host."""
    pids: dict[str, list[int]] = {}
    for rank in ranks:
        member = job.ranks[rank]
        if member.process.state == "T":
            pids.setdefault(member.host if job.several else "", []).append(member.process.pid)
    found: list[Action] = [
        RunShell(script=f"kill -CONT {' '.join(map(str, its))}", host=host) for host, its in pids.items()
    ]
    if len(found) <= _MAX_NAMED_HOSTS:
        return tuple(found)
    return (*found[:_MAX_NAMED_HOSTS], Advise(what="more-hosts", number=len(found) - _MAX_NAMED_HOSTS))


def _on_host(job: JobView, host: str, action: Action) -> Action:
    match action:
        case RunBreakranks() if action.pid:
            rank = job.by_pid.get((host, action.pid))
            if rank is not None and job.ranks[rank].process.pid == action.pid:
                return replace(action, pid=0, args=("--rank", str(rank), *action.args))
            return replace(action, host=host)
        case RunShell():
            return replace(action, host=host)
        case Advise() if action.what in _THERE:
            return replace(action, host=host)
    return action
