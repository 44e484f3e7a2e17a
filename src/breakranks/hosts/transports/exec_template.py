"""``exec:TEMPLATE@hosts``: any program that runs a command somewhere, one process a host.

The template is split into words as by a shell, but no shell is run. ``{host}`` in it is the host; without one, the host
is a last word. The command to run there follows as words of its own, as ``docker exec`` and ``kubectl exec`` want
it, or stands in place of ``{command}`` as one quoted text, as ``ssh`` and whatever else gives it to a shell want it.
"""

from __future__ import annotations

import os
import shlex

from breakranks.errors import UsageError
from breakranks.hosts.transports.local_programs import need
from breakranks.hosts.transports.node_sets import hosts_of
from breakranks.hosts.transports.transport import PIECE_BYTES, HostPlan, Remote, Transport

# A terminal changes what passes, and blocks: podman then cannot stop the container any more.
_TERMINAL = ("-it", "-ti", "--tty", "--tty=true")
_OF_CONTAINERS = ("docker", "podman", "nerdctl", "kubectl", "oc")  # whose -t is one


def plan_command(where: str, template: str, remote: Remote) -> HostPlan:
    """A process a host, from a template."""
    hosts = hosts_of(where, "exec")
    words = shlex.split(template)
    for word in words[1:]:
        if word in _TERMINAL or (word == "-t" and os.path.basename(words[0]) in _OF_CONTAINERS):
            raise UsageError(
                f"exec: {word} gives the command a terminal, which changes what passes through it",
                "Leave it out and keep standard input: docker exec -i, kubectl exec -i",
            )
    need(words[0], "It is the first word of the template; write its whole path if it is not in PATH.")
    command = remote(PIECE_BYTES)
    transports = (Transport(hosts=(host,), argv=argv_of(words, host, command), piece=PIECE_BYTES) for host in hosts)
    return HostPlan(name=f"exec:{template}@{where}", hosts=hosts, transports=tuple(transports))


def argv_of(words: list[str], host: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a template for one host.

    >>> argv_of(["docker", "exec", "-i"], "c1", ("sh", "-c", "true"))
    ('docker', 'exec', '-i', 'c1', 'sh', '-c', 'true')
    """
    whole = any("{command}" in word for word in words)
    named = any("{host}" in word for word in words)
    text = shlex.join(command)
    filled = [word.replace("{host}", host).replace("{command}", text) for word in words]
    if not named:
        filled.append(host)  # with {command} too: parse_target demands {host} there
    return (*filled, *(() if whole else command))
