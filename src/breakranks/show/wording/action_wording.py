"""The next step, as a line to type or to read."""

from __future__ import annotations

import re
import shlex
from functools import singledispatch

from breakranks.explain.actions import Action, Advise, FollowRemedy, RunBreakranks, RunShell
from breakranks.show.wording.grammar import listed
from breakranks.show.wording.value_wording import ranks

ADVICE = {
    "wait-or-build": "wait for the build, or build once before the job starts",
    "find-client": "find the client that should connect",
    "answer-prompt": "answer at {path} (c continues)",
    "log-or-kernel": "read the end of its log; to see whether the kernel killed it: dmesg | grep -i 'killed process'",
    "log-end": "read the end of its log: breakranks cannot inspect a process that has ended",
    "start-ranks": "start {ranks}, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE",
    "name-hosts-other": "name all hosts of the job in the target: the rank may be on another host",
    "name-hosts": "name all hosts of the job in the target",
    "why-on-hosts": "run breakranks why on all hosts of the job: breakranks why ssh:HOSTS",
    "start-hosts": "start the job on the other hosts, with the same rendezvous endpoint or MASTER_ADDR and MASTER_PORT",
    "firewalls": "check firewalls and switches between {hosts} (port {number})",
    "find-dump": "check the logs and hosts of {ranks}; a dump would show the last calls",
    "more-hosts": "# more hosts: {number}",
}
_NEEDS_QUOTES = re.compile(r"[|;&<>]")


@singledispatch
def action_text(action: Action) -> str:
    raise NotImplementedError(f"no wording for {type(action).__name__}")


@action_text.register
def _(action: RunBreakranks) -> str:
    about = f"pid:{action.pid}" if action.pid else shlex.quote(action.path) if action.path else action.target
    words = ["breakranks", action.command, *([about] if about else []), *action.args]
    return _with_comment(on_host(action.host, " ".join(words)), action)


@action_text.register
def _(action: RunShell) -> str:
    return _with_comment(on_host(action.host, action.script), action)


@action_text.register
def _(action: Advise) -> str:
    text = ADVICE[action.what].format(
        path=action.path,
        ranks=ranks(action.ranks) if action.ranks else "",
        hosts=listed(action.hosts),
        number=action.number,
    )
    return f"{text}, on {action.host}" if action.host else text


@action_text.register
def _(action: FollowRemedy) -> str:
    return action.remedy


def on_host(host: str, command: str) -> str:
    """
    >>> on_host("n2", "kill -CONT 7"), on_host("n2", "dmesg | tail"), on_host("", "dmesg | tail")
    ('ssh n2 kill -CONT 7', "ssh n2 'dmesg | tail'", 'dmesg | tail')
    """
    if not host:
        return command
    return f"ssh {shlex.quote(host)} {shlex.quote(command) if _NEEDS_QUOTES.search(command) else command}"


def _with_comment(text: str, action: Action) -> str:
    return f"{text}  # {action.comment}" if action.comment else text
