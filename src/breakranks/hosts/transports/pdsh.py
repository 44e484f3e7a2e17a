"""``pdsh:NODESET``: the hosts and the ssh options of pdsh, and one ssh a host.

pdsh sends no input to what it runs, and an agent needs one. So pdsh only names the hosts (``pdsh:`` alone), and ssh
is started as pdsh's ssh module would: ``ssh PDSH_SSH_ARGS_APPEND PDSH_SSH_ARGS COMMAND``.
"""

from __future__ import annotations

import os
import re
import shlex

from breakranks.errors import UsageError
from breakranks.hosts.transports.local_programs import ProgramOutput, ask, need
from breakranks.hosts.transports.node_sets import checked, hosts_of
from breakranks.hosts.transports.ssh import INSTALL, NO_PROMPT, leading_options, ssh_arguments
from breakranks.hosts.transports.transport import PIECE_BYTES, HostPlan, Remote, Transport, TransportOptions
from breakranks.jobs.unreadable_processes import user_name

_REMEDY = "Install it: apt-get install pdsh, or use ssh: with the same hosts"
_NO_HOSTS = "Name them: pdsh:n[1-4]; or put them in a file, one a line, and name that in WCOLL"
_ONLY_SSH = "Set PDSH_RCMD_TYPE=ssh, or name the command that logs in: exec:{kind} {{host}} {{command}}@HOSTS"
_UNSET = "Unset it for this command, or use ssh: with the same hosts"
_GIVEN, _APPENDED = "PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND"
_PARAMETER = re.compile("%([hun%])")


def plan_pdsh(where: str, options: TransportOptions, remote: Remote) -> HostPlan:
    """A ssh a host. Without a node set, pdsh says which hosts."""
    kind = os.environ.get("PDSH_RCMD_TYPE") or "ssh"
    if kind != "ssh":
        raise UsageError(
            f"PDSH_RCMD_TYPE is {kind}: breakranks needs ssh, since pdsh sends no input to what it runs",
            _ONLY_SSH.format(kind=kind),
        )
    hosts = hosts_of(where, "pdsh") if where else _own_hosts(options)
    for host in hosts:
        if ":" in host:  # pdsh would read "module:host"
            raise UsageError(f"pdsh cannot be told a host with a colon: {host}", "Use ssh: for it.")
    need("ssh", INSTALL)
    prefix = ("ssh", *ssh_arguments(options))
    command = shlex.join(remote(PIECE_BYTES))
    transports = (
        Transport(hosts=(host,), argv=(*prefix, *ssh_words(host, number), command), piece=PIECE_BYTES, env=NO_PROMPT)
        for number, host in enumerate(hosts)
    )
    return HostPlan(name=f"pdsh:{where}", hosts=hosts, transports=tuple(transports))


def ssh_words(host: str, number: int) -> tuple[str, ...]:
    """The words of pdsh's settings for one host, with the host; raises UsageError where they leave no input.

    pdsh names the host, and a user who is not the local one, where its settings do not.
    """
    extra, given = (os.environ.get(name, "").split() for name in (_APPENDED, _GIVEN))
    if (end := leading_options(extra, _APPENDED, _UNSET)) < len(extra):
        raise UsageError(f"{_APPENDED}: {extra[end]!r} is not an option of ssh", _UNSET)
    end = leading_options(given, _GIVEN, _UNSET)
    user, _, bare = host.rpartition("@")
    login = ("-l%u",) if user and not any("%u" in word for word in (*extra, *given)) else ()
    values = {"h": bare, "u": user or user_name(os.getuid()), "n": str(number), "%": "%"}
    words = (*extra, *given[:end], *login, *(given[end:] or ("%h",)))
    return tuple(_PARAMETER.sub(lambda found: values[found[1]], word) for word in words)


def _own_hosts(options: TransportOptions) -> tuple[str, ...]:
    """The hosts that pdsh goes to when it is told none: of WCOLL, or all that its site has set up (``-a``)."""
    said: list[ProgramOutput] = []
    for choice in ((), ("-a",)):
        said.append(ask(("pdsh", *choice, "-Q"), options.deadline, _REMEDY))
        found = re.search(r"-- Target nodes --\n(.*)", said[-1].out)
        if said[-1].status == 0 and found:
            return checked(found[1].split(","), "pdsh:")
    reason = (said[0].err.strip() or "it says nothing").removeprefix(f"pdsh@{os.uname().nodename}: ")
    raise UsageError(f"pdsh has no hosts of its own: {reason}", _NO_HOSTS)
