"""``pdsh:NODESET``: the hosts and ssh options of pdsh, and one ssh per host.

pdsh passes no input to the command, and an agent needs it. So pdsh only lists the hosts (``pdsh:`` alone), and ssh is
started as the ssh module of pdsh would: ``ssh PDSH_SSH_ARGS_APPEND PDSH_SSH_ARGS COMMAND``.
"""

from __future__ import annotations

import os
import re
import shlex

from breakranks.errors import UsageError
from breakranks.hosts.transports.local_programs import ProgramOutput, ask, need
from breakranks.hosts.transports.node_sets import checked, hosts_of
from breakranks.hosts.transports.ssh import INSTALL, NO_PROMPT, leading_options, ssh_arguments
from breakranks.hosts.transports.transport_plan import PIECE_BYTES, HostPlan, Remote, Transport, TransportOptions
from breakranks.observe.this_host import user_name

_REMEDY = "Install it: apt-get install pdsh, or use ssh: with the same hosts"
_NO_HOSTS = "Name them: pdsh:n[1-4]. Or write them to a file, one per line, and set WCOLL to its path"
_ONLY_SSH = "Set PDSH_RCMD_TYPE=ssh, or use the login command directly: exec:{kind} {{host}} {{command}}@HOSTS"
_UNSET = "Unset it for this command, or use ssh: with the same hosts"
_GIVEN, _APPENDED = "PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND"
_PARAMETER = re.compile("%([hun%])")


def plan_pdsh(where: str, options: TransportOptions, remote: Remote) -> HostPlan:
    """Return a plan with one ssh per host. Without a node set, pdsh lists the hosts."""
    kind = os.environ.get("PDSH_RCMD_TYPE") or "ssh"
    if kind != "ssh":
        raise UsageError(
            f"PDSH_RCMD_TYPE is {kind}: breakranks needs ssh, because pdsh passes no input to its command",
            _ONLY_SSH.format(kind=kind),
        )
    hosts = hosts_of(where, "pdsh") if where else _own_hosts(options)
    for host in hosts:
        if ":" in host:  # pdsh would read "module:host"
            raise UsageError(f"pdsh does not accept a host with a colon: {host}", "Use ssh: for it.")
    need("ssh", INSTALL)
    prefix = ("ssh", *ssh_arguments(options))
    command = shlex.join(remote(PIECE_BYTES))
    transports = (
        Transport(hosts=(host,), argv=(*prefix, *ssh_words(host, number), command), piece=PIECE_BYTES, env=NO_PROMPT)
        for number, host in enumerate(hosts)
    )
    return HostPlan(name=f"pdsh:{where}", scheme="pdsh", hosts=hosts, transports=tuple(transports))


def ssh_words(host: str, number: int) -> tuple[str, ...]:
    """Return the arguments of ssh for one host, from pdsh's settings; raise UsageError if those take away the input.

    As pdsh does, add the host, and a user who is not the local one, if the settings lack them.
    """
    extra, given = (os.environ.get(name, "").split() for name in (_APPENDED, _GIVEN))
    if (end := leading_options(extra, _APPENDED, _UNSET)) < len(extra):
        raise UsageError(f"{_APPENDED}: {extra[end]!r} is not an option of ssh", _UNSET)
    end = leading_options(given, _GIVEN, _UNSET)
    user, _, bare = host.rpartition("@")
    login = ("-l%u",) if user and not any("%u" in word for word in (*extra, *given)) else ()
    values = {"h": bare, "u": user or user_name(os.getuid()), "n": str(number), "%": "%"}
    words = (*extra, *given[:end], *login, *(given[end:] or ("%h",)))
    return tuple(_PARAMETER.sub(lambda match: values[match[1]], word) for word in words)


def _own_hosts(options: TransportOptions) -> tuple[str, ...]:
    """Return the hosts that pdsh uses by default: those of WCOLL, or all that its site has configured (``-a``)."""
    outputs: list[ProgramOutput] = []
    for choice in ((), ("-a",)):
        outputs.append(ask(("pdsh", *choice, "-Q"), options.deadline, _REMEDY))
        match = re.search(r"-- Target nodes --\n(.*)", outputs[-1].out)
        if outputs[-1].status == 0 and match:
            return checked(match[1].split(","), "pdsh:")
    reason = (outputs[0].err.strip() or "no message").removeprefix(f"pdsh@{os.uname().nodename}: ")
    raise UsageError(f"pdsh has no default hosts: {reason}", _NO_HOSTS)
