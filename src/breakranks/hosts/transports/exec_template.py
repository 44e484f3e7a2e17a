"""``exec:TEMPLATE@hosts``: any program that runs a command on a host, one process per host.

The template is split into words as by a shell, but no shell is run. ``{host}`` in it is the host; without one, the host
is the last word. The command to run there follows as separate words, as ``docker exec`` and ``kubectl exec`` expect it.
Or it replaces ``{command}`` as one quoted text, for ``ssh`` and other programs that pass it to a shell.
"""

from __future__ import annotations

import os
import shlex

from breakranks.errors import UsageError
from breakranks.hosts.transports.local_programs import need
from breakranks.hosts.transports.node_sets import hosts_of
from breakranks.hosts.transports.transport_plan import PIECE_BYTES, HostPlan, Remote, Transport

# A terminal changes what passes through it, and blocks: podman cannot stop the container after that.
_TERMINAL = ("-it", "-ti", "--tty", "--tty=true")
_OF_CONTAINERS = ("docker", "podman", "nerdctl", "kubectl", "oc")  # their -t means a terminal


def plan_command(where: str, template: str, remote: Remote) -> HostPlan:
    """Return a plan with one process per host."""
    hosts = hosts_of(where, "exec")
    words = shlex.split(template)
    for word in words[1:]:
        if word in _TERMINAL or (word == "-t" and os.path.basename(words[0]) in _OF_CONTAINERS):
            raise UsageError(
                f"exec: {word} gives the command a terminal, which changes its input and output",
                "Omit it, and pass on standard input: docker exec -i, kubectl exec -i",
            )
    need(words[0], "It is the first word of the template. Write its whole path if it is not in PATH.")
    command = remote(PIECE_BYTES)
    transports = (Transport(hosts=(host,), argv=argv_of(words, host, command), piece=PIECE_BYTES) for host in hosts)
    return HostPlan(name=f"exec:{template}@{where}", scheme="exec", hosts=hosts, transports=tuple(transports))


def argv_of(words: list[str], host: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line of a template for one host.

    >>> argv_of(["docker", "exec", "-i"], "c1", ("sh", "-c", "true"))
    ('docker', 'exec', '-i', 'c1', 'sh', '-c', 'true')
    """
    whole = any("{command}" in word for word in words)
    named = any("{host}" in word for word in words)
    text = shlex.join(command)
    filled = [word.replace("{host}", host).replace("{command}", text) for word in words]
    if not named:
        filled.append(host)  # with {command}, parse_target requires {host}
    return (*filled, *(() if whole else command))
