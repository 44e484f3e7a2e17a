"""``mpi:HOSTFILE``: one mpirun a host, by whatever way mpirun has there (ssh, or the site's own).

Lines of any length pass whole both ways, and when mpirun is killed the agent's stdin ends. mpirun itself opens a
port for its daemons, as it does for the job. That of MPICH (Hydra) is killed by itself when more than 64 kB wait to be
read: it reaches hosts that have breakranks, and not those that would have to be sent it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from breakranks.errors import UsageError
from breakranks.hosts.transports.local_programs import ask, spaced, without
from breakranks.hosts.transports.node_sets import checked, shortened
from breakranks.hosts.transports.ssh import ssh_arguments
from breakranks.hosts.transports.transport import PIECE_BYTES, HostPlan, Remote, Transport, TransportOptions

_REMEDY = "Run it where mpirun works, or use ssh: with the same hosts."
_LINES = "A host a line, as mpirun reads it: n1 slots=8, or n1:8, or n1"
# "mpirun does not support recursive calls", unless nothing tells it that it is in a job.
_IN_A_JOB = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}
_OF_A_JOB = ("OMPI_", "PMIX_", "PMI_", "ORTE_", "PRTE_", "HYDRA_", "HYDI_")
_OF_THE_SITE = ("OMPI_MCA_oob_", "OMPI_MCA_plm_", "OMPI_MCA_if_", "HYDRA_LAUNCHER", "HYDRA_IFACE")
_MAX_HOSTFILE_BYTES = 4_000_000  # bytes of a file of hosts
_SLOTS = re.compile(r"([^:]+):[0-9]+")  # of a name with one colon; IPv6 has more


def plan_mpi(path: str, options: TransportOptions, remote: Remote) -> HostPlan:
    """A mpirun a host of the file."""
    hosts = read_hostfile(path)
    start = _flavour(options.deadline)
    command = remote(PIECE_BYTES)
    clean = without(_OF_A_JOB, keep=_OF_THE_SITE) if os.environ.keys() & _IN_A_JOB else ()
    transports = (
        Transport(hosts=(host,), argv=(*clean, *start(host, options), *command), piece=PIECE_BYTES) for host in hosts
    )
    return HostPlan(name=f"mpi:{path}", hosts=hosts, transports=tuple(transports))


def read_hostfile(path: str) -> tuple[str, ...]:
    """The hosts of a file that mpirun reads; raises UsageError."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            text = file.read(_MAX_HOSTFILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the file of hosts {path} cannot be read: {error.strerror}", _LINES) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a file of hosts: it is not text", _LINES) from error
    if len(text) > _MAX_HOSTFILE_BYTES:
        raise UsageError(f"{path} is not a file of hosts: it is too long", _LINES)
    names = parse_hostfile(text)
    if not names:
        raise UsageError(f"{path} names no host", _LINES)
    try:
        return checked(names, path)
    except UsageError as error:
        raise UsageError(f"{path} is not a file of hosts: {error.message}", _LINES) from error


def parse_hostfile(text: str) -> list[str]:
    """The first word of each line, without a number of slots; a host with none (``slots=0``) is left out.

    >>> parse_hostfile("n1 slots=2 # fast\\n# n9\\nn2:4\\nann@n3\\n")
    ['n1', 'n2', 'ann@n3']
    """
    names: list[str] = []
    for line in text.splitlines():
        words = line.partition("#")[0].replace("=", " = ").split()
        if not words or _slots(words[1:]) == "0":
            continue
        match = _SLOTS.fullmatch(words[0])
        names.append(match[1] if match else shortened(words[0]))
    return names


def _slots(words: list[str]) -> str:
    for name, equals, value in zip(words, words[1:], words[2:], strict=False):
        if name in ("slots", "count") and equals == "=":
            return value
    return ""


def _flavour(deadline: float) -> Callable[[str, TransportOptions], tuple[str, ...]]:
    answer = ask(("mpirun", "--version"), deadline, _REMEDY)
    if answer.status:
        raise UsageError(f"mpirun does not work here: {shortened(answer.err.strip())}", _REMEDY)
    said = answer.out
    if "HYDRA" in said or "Intel(R) MPI" in said:
        return _hydra
    found = re.search(r"(?:Open MPI\)|prterun|mpirun)\D*(\d+)\.", said)
    return _open_mpi_5 if found and int(found[1]) >= 5 else _open_mpi


def _open_mpi(host: str, options: TransportOptions) -> tuple[str, ...]:
    return (*_common(), "--oversubscribe", "--mca", "plm_rsh_args", _ssh(host, options), "--host", _bare(host))


def _open_mpi_5(host: str, options: TransportOptions) -> tuple[str, ...]:
    placed = ("--map-by", ":oversubscribe")
    return (*_common(), *placed, "--prtemca", "plm_ssh_args", _ssh(host, options), "--host", _bare(host))


def _common() -> tuple[str, ...]:
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return ("mpirun", *root, "-np", "1", "--bind-to", "none", "--wdir", "/")


def _hydra(host: str, options: TransportOptions) -> tuple[str, ...]:
    extra = f"HYDRA_LAUNCHER_EXTRA_ARGS={_ssh(host, options)}"
    return ("env", extra, "mpirun", "-hosts", _bare(host), "-n", "1", "-bind-to", "none", "-wdir", "/")


def _ssh(host: str, options: TransportOptions) -> str:
    user = host.rpartition("@")[0]
    return spaced((*ssh_arguments(options), *((f"-l{user}",) if user else ())), "mpirun")


def _bare(host: str) -> str:
    return host.rpartition("@")[2]
