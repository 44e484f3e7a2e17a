"""``mpi:HOSTFILE``: one mpirun per host, with the launcher that mpirun uses (ssh, or that of the site).

Lines of any length pass whole in both directions, and the agent's stdin ends when mpirun is killed. mpirun itself opens
a port for its daemons, as it does for the job. The mpirun of MPICH (Hydra) kills itself when more than 64 kB wait to be
read. It reaches hosts that have breakranks, but not hosts to which it must be sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from breakranks.errors import UsageError
from breakranks.hosts.transports.local_programs import ask, spaced, without
from breakranks.hosts.transports.node_sets import checked, shortened
from breakranks.hosts.transports.ssh import ssh_arguments
from breakranks.hosts.transports.transport_plan import PIECE_BYTES, HostPlan, Remote, Transport, TransportOptions

_REMEDY = "Run it where mpirun works, or use ssh: with the same hosts."
_LINES = "Write one host per line, as for mpirun: n1 slots=8, or n1:8, or n1"
# Within a job mpirun refuses to run ("mpirun does not support recursive calls"), unless these are unset.
_IN_A_JOB = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}
_OF_A_JOB = ("OMPI_", "PMIX_", "PMI_", "ORTE_", "PRTE_", "HYDRA_", "HYDI_")
_OF_THE_SITE = ("OMPI_MCA_oob_", "OMPI_MCA_plm_", "OMPI_MCA_if_", "HYDRA_LAUNCHER", "HYDRA_IFACE")
_MAX_HOSTFILE_BYTES = 4_000_000
_SLOTS = re.compile(r"([^:]+):[0-9]+")  # a name with one colon; IPv6 has more


def plan_mpi(path: str, options: TransportOptions, remote: Remote) -> HostPlan:
    """Return a plan with one mpirun per host of the file."""
    hosts = read_hostfile(path)
    start = _flavour(options.deadline)
    command = remote(PIECE_BYTES)
    clean = without(_OF_A_JOB, keep=_OF_THE_SITE) if os.environ.keys() & _IN_A_JOB else ()
    transports = (
        Transport(hosts=(host,), argv=(*clean, *start(host, options), *command), piece=PIECE_BYTES) for host in hosts
    )
    return HostPlan(name=f"mpi:{path}", scheme="mpi", hosts=hosts, transports=tuple(transports))


def read_hostfile(path: str) -> tuple[str, ...]:
    """Return the hosts of a hostfile; raise UsageError if it cannot be read or names no host."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            text = file.read(_MAX_HOSTFILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the hostfile {path} cannot be read: {error.strerror}", _LINES) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a hostfile: it is not text", _LINES) from error
    if len(text) > _MAX_HOSTFILE_BYTES:
        raise UsageError(f"{path} is not a hostfile: it is too long", _LINES)
    names = parse_hostfile(text)
    if not names:
        raise UsageError(f"{path} names no host", _LINES)
    try:
        return checked(names, path)
    except UsageError as error:
        raise UsageError(f"{path} is not a hostfile: {error.message}", _LINES) from error


def parse_hostfile(text: str) -> list[str]:
    """Return the first word of each line, without the number of slots. Hosts with ``slots=0`` are omitted.

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
    version = answer.out
    if "HYDRA" in version or "Intel(R) MPI" in version:
        return _hydra
    match = re.search(r"(?:Open MPI\)|prterun|mpirun)\D*(\d+)\.", version)
    return _open_mpi_5 if match and int(match[1]) >= 5 else _open_mpi


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
