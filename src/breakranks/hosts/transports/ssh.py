"""``ssh:NODESET``: one ssh per host. Keys, users, jump hosts and addresses come from ``~/.ssh/config``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from breakranks.errors import UsageError
from breakranks.hosts.transports.local_programs import need
from breakranks.hosts.transports.node_sets import hosts_of
from breakranks.hosts.transports.transport_plan import PIECE_BYTES, HostPlan, Remote, Transport, TransportOptions

# Options of ssh: those with a value, and those that would take away the input or output.
_VALUED = frozenset("BbcDEeFIiJLlmOopPQRSWw")
_FORBIDDEN = frozenset("fNnstMGVQOW")
# The ssh to a jump host, which ssh starts, does not inherit BatchMode.
NO_PROMPT = {"SSH_ASKPASS_REQUIRE": "never"}
INSTALL = "Install it: apt-get install openssh-client, or dnf install openssh-clients"

# First, because ssh takes the first of a setting that is given twice.
# Never prompt. An existing shared connection is used, but no process is left behind to share this one.
# A command or forwarded ports of the configuration are for interactive logins.
_FIXED = (
    *("-a", "-x", "-T"),
    *("-oBatchMode=yes", "-oControlMaster=no", "-oRemoteCommand=none", "-oClearAllForwardings=yes"),
)


def plan_ssh(where: str, options: TransportOptions, remote: Remote) -> HostPlan:
    """Return a plan with one ssh per host."""
    hosts = hosts_of(where, "ssh")
    need("ssh", INSTALL)
    prefix = ("ssh", *ssh_arguments(options))
    command = shlex.join(remote(PIECE_BYTES))
    transports = (
        Transport(hosts=(host,), argv=(*prefix, "--", host, command), piece=PIECE_BYTES, env=NO_PROMPT)
        for host in hosts
    )
    return HostPlan(name=f"ssh:{where}", scheme="ssh", hosts=hosts, transports=tuple(transports))


def patience(options: TransportOptions) -> int:
    """Return the seconds in which ssh must connect. It gives up before the deadline, because it then reports why."""
    return max(1, int(options.deadline * 0.8))


def ssh_arguments(options: TransportOptions) -> tuple[str, ...]:
    """Return options for ssh. With them, a host that dies in mid-session is noticed after half a minute."""
    return (
        *_FIXED,
        *_config(options.ssh_config),
        *user_options(options.ssh_options),
        f"-oConnectTimeout={patience(options)}",
        *("-oServerAliveInterval=10", "-oServerAliveCountMax=3"),
    )


def _config(path: str | None) -> tuple[str, ...]:
    if not path:
        return ()
    path = os.path.abspath(os.path.expanduser(path))  # an ssh that mpirun starts has another working directory
    if not os.access(path, os.R_OK):
        raise UsageError(f"--ssh-config: {path} cannot be read", "Give a file in the format of ~/.ssh/config.")
    return ("-F", path)


def user_options(text: str | None) -> tuple[str, ...]:
    """Return the words of ``--ssh-options``; raise UsageError for a word that ssh would take for a host.

    >>> user_options("-p 2222 -oUser=ann")
    ('-p', '2222', '-oUser=ann')
    """
    example = 'For example: --ssh-options "-p 2222 -i ~/.ssh/cluster -oStrictHostKeyChecking=accept-new"'
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise UsageError(f"--ssh-options: {error} in {text!r}", example) from error
    if (end := leading_options(words, "--ssh-options", example)) < len(words):
        raise UsageError(f"--ssh-options: {words[end]!r} is not an option of ssh", example)
    return tuple(words)


def leading_options(words: Sequence[str], source: str, remedy: str) -> int:
    """Return how many words are options of ssh or their values, up to the first that is neither.

    Raise UsageError for an option that would take away the input or output. ``source`` is where the words came from.
    """
    at = 0
    while at < len(words) and len(words[at]) > 1 and words[at][0] == "-" and words[at] != "--":
        word = words[at]
        at += 1
        for place, letter in enumerate(word[1:], 1):
            if letter in _FORBIDDEN:
                raise UsageError(f"{source}: -{letter} would take away the input or output of breakranks", remedy)
            if letter in _VALUED:
                if place == len(word) - 1:
                    at += 1
                break
        if at > len(words):
            raise UsageError(f"{source}: -{word[-1]} needs a value", remedy)
    return at
