"""``exec:TEMPLATE@hosts``: any program that runs a command somewhere, one process a host.

The template is split into words as by a shell, but no shell is run. ``{host}`` in it is the host; without one, the host
is a last word. The command to run there follows as words of its own, as ``docker exec`` and ``kubectl exec`` want
it, or stands in place of ``{command}`` as one quoted text, as ``ssh`` and whatever else gives it to a shell want it.
"""

from __future__ import annotations

import shlex

from breakranks.reach.ways.model import PIECE, Carrier, Plan, Remote
from breakranks.reach.ways.nodes import hosts_of
from breakranks.reach.ways.tools import need


def plan_command(where: str, template: str, remote: Remote) -> Plan:
    """A process a host, from a template."""
    hosts = hosts_of(where, "exec")
    words = shlex.split(template)
    need(words[0], "It is the first word of the template; write its whole path if it is not in PATH.")
    command = remote(PIECE)
    carriers = (Carrier(hosts=(host,), argv=argv_of(words, host, command), piece=PIECE) for host in hosts)
    return Plan(name=f"exec:{template}@{where}", hosts=hosts, carriers=tuple(carriers))


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
