"""Where a command is to be typed, when the job is on several hosts."""

from __future__ import annotations

import re
import shlex

from msgspec.structs import replace

from breakranks.explain.diagnosis import Finding
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import RankCause
from breakranks.rankset import RankSet

_COMMANDS = ("kill ", "grep ", "ls ", "dmesg ", "rm ", "findmnt ")
_PROSE = ("answer at ", "look at the end of its log")
_OURS = re.compile(r"breakranks stacks pid:(\d+)(.*)\Z")
_OURS_HERE = re.compile(r"^breakranks [a-z]+(?! pid:)\b")
_SHELL = re.compile(r"[|;&<>]")
_MAX_NAMED_HOSTS = 6


def at_host(case: JobView, one: ProcessView, reason: RankCause) -> RankCause:
    """The same reason, with commands that say on which host."""
    host = case.host_of(one.process)
    if not host:
        return reason
    return reason._replace(next=tuple(_there(case, host, command) for command in reason.next))


def on(host: str, command: str) -> str:
    """
    >>> on("n2", "kill -CONT 7"), on("n2", "dmesg | tail"), on("", "dmesg | tail")
    ('ssh n2 kill -CONT 7', "ssh n2 'dmesg | tail'", 'dmesg | tail')
    """
    if not host:
        return command
    return f"ssh {shlex.quote(host)} {shlex.quote(command) if _SHELL.search(command) else command}"


def with_target(finding: Finding, target: str) -> Finding:
    """The same finding, with commands of ours that reach the job again: ``target`` is words for a shell."""
    following = tuple(_OURS_HERE.sub(lambda found: f"{found[0]} {target}", command) for command in finding.next)
    return replace(finding, next=following)


def to_continue(case: JobView, ranks: RankSet) -> tuple[str, ...]:
    """What lets stopped ranks run on, a line a host."""
    pids: dict[str, list[int]] = {}
    for rank in ranks:
        one = case.ranks[rank]
        if one.process.state == "T":
            pids.setdefault(one.host if case.several else "", []).append(one.process.pid)
    lines = [on(host, f"kill -CONT {' '.join(map(str, its))}") for host, its in pids.items()]
    more = [f"# and on {len(lines) - _MAX_NAMED_HOSTS} more hosts"] if len(lines) > _MAX_NAMED_HOSTS else []
    return (*lines[:_MAX_NAMED_HOSTS], *more)


def _there(case: JobView, host: str, command: str) -> str:
    ours = _OURS.match(command)
    if ours is not None:
        rank = case.by_pid.get((host, int(ours[1])))
        if rank is not None and case.ranks[rank].process.pid == int(ours[1]):
            return f"breakranks stacks --rank {rank}{ours[2]}"
        return on(host, command)
    if command.startswith(_PROSE):
        return f"{command}, on {host}"
    return on(host, command) if command.startswith(_COMMANDS) else command
