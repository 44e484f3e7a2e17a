"""``pdsh:NODESET``: one pdsh for all hosts.

What pdsh prints comes as whole lines, each with ``host: `` in front, on stdout and stderr alike. What it is given
reaches nobody, so an agent makes a fifo, and a second, short pdsh writes the lines into that. An agent's stdin stays
open for as long as its pdsh lives: its end is how it learns that pdsh was killed.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence

from breakranks.errors import UsageError
from breakranks.reach.ways.model import Carrier, Options, Plan, Remote
from breakranks.reach.ways.nodes import checked, hosts_of
from breakranks.reach.ways.ssh import patience, ssh_arguments
from breakranks.reach.ways.tools import Answer, ask, need, spaced

PIECE = 3000  # lines of 64 kB come whole with pdsh 2.34; an older one may have a smaller buffer
_TEXT = 100_000  # characters of a command: the far shell gets them as one argument, of 128 kB at most
_LIST = 60_000  # characters of a list of hosts
_INWARD_LIMIT = 60  # seconds until lines that nobody reads are given up

_REMEDY = "Install it: apt-get install pdsh, or use ssh: with the same hosts"
_NO_HOSTS = "Name them: pdsh:n[1-4]; or put them in a file, one a line, and name that in WCOLL"

# The number of the run is the second word of a line of ours; it names the fifo, in whichever folder that is.
_FEED = (
    "n=${1#@br1 }; n=${n%% *}; "
    'for d in "$XDG_RUNTIME_DIR" "$TMPDIR" /tmp /var/tmp /dev/shm "$HOME"; do '
    'f=$d/breakranks-$(id -u)-$n; if [ -O "$f" ] && [ -p "$f/in" ]; then printf "%s\\n" "$@" >"$f/in"; exit; fi; '
    'done; echo "breakranks: nobody listens here" >&2; exit 3'
)


def plan_pdsh(where: str, options: Options, remote: Remote) -> Plan:
    """One pdsh; more where the list of hosts is too long for a command line."""
    hosts = hosts_of(where, "pdsh") if where else _own_hosts(options)
    need("pdsh", _REMEDY)
    for host in hosts:
        if ":" in host:  # pdsh would read "module:host"
            raise UsageError(f"pdsh cannot be told a host with a colon: {host}", "Use ssh: for it.")
    env = _environment(options)
    command = _escaped(shlex.join(remote(PIECE, True)))
    feed = _escaped(shlex.join(("sh", "-c", _FEED, "breakranks")))
    carriers = []
    for part in _parts(hosts):
        shared = ("pdsh", "-S", "-b", "-t", str(patience(options)), "-w", ",".join(part))
        argv = (*shared, "-f", str(len(part)), command)
        inward = (*shared, "-f", str(min(len(part), options.fanout)), "-u", str(_INWARD_LIMIT), feed)
        carriers.append(Carrier(hosts=tuple(part), argv=argv, env=env, piece=PIECE, inward=inward))
    return Plan(name=f"pdsh:{where}", hosts=hosts, carriers=tuple(carriers))


def inward_commands(carrier: Carrier, lines: Sequence[str], without: Collection[str] = ()) -> Iterator[tuple[str, ...]]:
    """The short pdsh runs that bring lines to the agents of a carrier, in order.

    ``without``: hosts that are lost. Each run would wait for them.
    """
    everyone, left = ",".join(carrier.hosts), ",".join(host for host in carrier.hosts if host not in without)
    if not left:
        return
    command = tuple(left if word == everyone else word for word in carrier.inward)
    start = len(command[-1])
    words: list[str] = []
    size = start
    for line in lines:
        word = _escaped(shlex.quote(line))
        if words and size + len(word) + 1 > _TEXT:
            yield (*command, *words)
            words, size = [], start
        words.append(word)
        size += len(word) + 1
    if words:
        yield (*command, *words)


def _escaped(text: str) -> str:
    """pdsh replaces %h, %u and %n in a command, and %% by a single one."""
    return text.replace("%", "%%")


def _environment(options: Options) -> dict[str, str]:
    words = _escaped(spaced(ssh_arguments(options), "pdsh"))
    theirs = os.environ.get("PDSH_SSH_ARGS_APPEND", "")
    return {
        "PDSH_RCMD_TYPE": os.environ.get("PDSH_RCMD_TYPE", "ssh"),  # Debian's default is rsh
        "PDSH_SSH_ARGS_APPEND": f"{words} {theirs}".strip(),
    }


def _own_hosts(options: Options) -> tuple[str, ...]:
    """The hosts that pdsh goes to when it is told none: of WCOLL, or all that its site has set up (``-a``)."""
    said: list[Answer] = []
    for choice in ((), ("-a",)):
        said.append(ask(("pdsh", *choice, "-Q"), options.deadline, _REMEDY))
        found = re.search(r"-- Target nodes --\n(.*)", said[-1].out)
        if said[-1].status == 0 and found:
            return checked(found[1].split(","), "pdsh:")
    reason = (said[0].err.strip() or "it says nothing").removeprefix(f"pdsh@{os.uname().nodename}: ")
    raise UsageError(f"pdsh has no hosts of its own: {reason}", _NO_HOSTS)


def _parts(hosts: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for host in hosts:
        if part and size + len(host) + 1 > _LIST:
            yield part
            part, size = [], 0
        part.append(host)
        size += len(host) + 1
    yield part
