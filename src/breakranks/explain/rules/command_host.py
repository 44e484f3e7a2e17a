"""Where a command is to be typed, when the job is on several hosts."""

from __future__ import annotations

from msgspec.structs import replace

from breakranks.explain.actions import Action, Advise, RunBreakranks, RunShell
from breakranks.explain.diagnosis import Finding
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import RankCause
from breakranks.rankset import RankSet

_MAX_NAMED_HOSTS = 6
# Advice to do something where the process is.
_THERE = frozenset({"answer-prompt", "log-or-kernel"})


def at_host(case: JobView, one: ProcessView, reason: RankCause) -> RankCause:
    """The same reason, with actions that say on which host."""
    host = case.host_of(one.process)
    if not host:
        return reason
    return reason._replace(next=tuple(_there(case, host, action) for action in reason.next))


def with_target(finding: Finding, target: str) -> Finding:
    """The same finding, with commands of ours that reach the job again: ``target`` is words for a shell."""
    following = tuple(
        replace(action, target=target) if isinstance(action, RunBreakranks) and not action.pid else action
        for action in finding.next
    )
    return replace(finding, next=following)


def to_continue(case: JobView, ranks: RankSet) -> tuple[Action, ...]:
    """What lets stopped ranks run on, one action for each host."""
    pids: dict[str, list[int]] = {}
    for rank in ranks:
        one = case.ranks[rank]
        if one.process.state == "T":
            pids.setdefault(one.host if case.several else "", []).append(one.process.pid)
    found: list[Action] = [
        RunShell(script=f"kill -CONT {' '.join(map(str, its))}", host=host) for host, its in pids.items()
    ]
    if len(found) <= _MAX_NAMED_HOSTS:
        return tuple(found)
    return (*found[:_MAX_NAMED_HOSTS], Advise(what="more-hosts", number=len(found) - _MAX_NAMED_HOSTS))


def _there(case: JobView, host: str, action: Action) -> Action:
    match action:
        case RunBreakranks() if action.pid:
            rank = case.by_pid.get((host, action.pid))
            if rank is not None and case.ranks[rank].process.pid == action.pid:
                return replace(action, pid=0, args=("--rank", str(rank), *action.args))
            return replace(action, host=host)
        case RunShell():
            return replace(action, host=host)
        case Advise() if action.what in _THERE:
            return replace(action, host=host)
    return action
