"""``ssh:NODESET``: one ssh a host. Keys, users, jumps and addresses are ssh's own business (``~/.ssh/config``)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from breakranks.errors import UsageError
from breakranks.hosts.transports.local_programs import need
from breakranks.hosts.transports.node_sets import hosts_of
from breakranks.hosts.transports.transport import PIECE_BYTES, HostPlan, Remote, Transport, TransportOptions

# Of ssh's options: those with a value, and those that would take the channel away from us.
_VALUED = frozenset("BbcDEeFIiJLlmOopPQRSWw")
_FORBIDDEN = frozenset("fNnstMGVQOW")
# The ssh to a jump host, which ours starts, is not told BatchMode.
NO_PROMPT = {"SSH_ASKPASS_REQUIRE": "never"}
INSTALL = "Install it: apt-get install openssh-client, or dnf install openssh-clients"

# First, so that nothing takes them away: of a setting that is given twice, ssh takes the first.
# No prompt, ever. A connection that is shared already is used, but no process is left behind to share this one.
# A command or forwarded ports of the configuration are for people.
_OURS = (
    *("-a", "-x", "-T"),
    *("-oBatchMode=yes", "-oControlMaster=no", "-oRemoteCommand=none", "-oClearAllForwardings=yes"),
)


def plan_ssh(where: str, options: TransportOptions, remote: Remote) -> HostPlan:
    """A ssh a host."""
    hosts = hosts_of(where, "ssh")
    need("ssh", INSTALL)
    prefix = ("ssh", *ssh_arguments(options))
    command = shlex.join(remote(PIECE_BYTES))
    transports = (
        Transport(hosts=(host,), argv=(*prefix, "--", host, command), piece=PIECE_BYTES, env=NO_PROMPT)
        for host in hosts
    )
    return HostPlan(name=f"ssh:{where}", hosts=hosts, transports=tuple(transports))


def patience(options: TransportOptions) -> int:
    """Seconds for ssh to connect in: it is to give up a little before our own deadline, because it says why."""
    return max(1, int(options.deadline * 0.8))


def ssh_arguments(options: TransportOptions) -> tuple[str, ...]:
    """Options for ssh, whoever starts it. A host that dies in mid-session is noticed after half a minute."""
    return (
        *_OURS,
        *_config(options.ssh_config),
        *user_options(options.ssh_options),
        f"-oConnectTimeout={patience(options)}",
        *("-oServerAliveInterval=10", "-oServerAliveCountMax=3"),
    )


def _config(path: str | None) -> tuple[str, ...]:
    if not path:
        return ()
    path = os.path.abspath(os.path.expanduser(path))  # one that mpirun starts has another folder
    if not os.access(path, os.R_OK):
        raise UsageError(f"--ssh-config: {path} cannot be read", "It is a file as ~/.ssh/config is.")
    return ("-F", path)


def user_options(text: str | None) -> tuple[str, ...]:
    """The words of ``--ssh-options``; raises UsageError for what is no option, as ssh would take it for a host.

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
    """How many words are options of ssh and their values, up to the first that is neither.

    Raises UsageError for an option that would take the channel away; ``source`` is where the words came from.
    """
    at = 0
    while at < len(words) and len(words[at]) > 1 and words[at][0] == "-" and words[at] != "--":
        word = words[at]
        at += 1
        for place, letter in enumerate(word[1:], 1):
            if letter in _FORBIDDEN:
                raise UsageError(f"{source}: -{letter} would take away the channel that is needed", remedy)
            if letter in _VALUED:
                if place == len(word) - 1:
                    at += 1
                break
        if at > len(words):
            raise UsageError(f"{source}: -{word[-1]} wants a value", remedy)
    return at
