"""The ways that a site has into its hosts, for the hosts of the rig: ssh, pdsh and mpirun. Slurm is in ``slurm``.

Needs the Debian packages ``pdsh`` and ``openmpi-bin``.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from .nodes import Nodes


def ssh(nodes: Nodes, *words: str, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
    """Run a command on a host as a person on the machine would."""
    command = ["ssh", "-F", str(nodes.ssh_config), *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)


def pdsh_environment(nodes: Nodes) -> dict[str, str]:
    """What ``pdsh`` needs to reach the hosts."""
    demand("pdsh", "pdsh")
    return {"PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": f"-F {nodes.ssh_config}"}


def hostfile(nodes: Nodes, names: Iterable[str], slots: int = 2) -> Path:
    """A file that tells Open MPI of these hosts."""
    names = list(names)
    path = nodes.folder / ("hostfile." + "-".join(names))
    path.write_text("".join(f"{name} slots={slots}\n" for name in names))
    return path


def mpi_options(nodes: Nodes) -> list[str]:
    """What ``mpirun`` needs to reach the hosts, and for its processes to reach each other."""
    demand("mpirun", "openmpi-bin")
    network = nodes.address.rpartition(".")[0] + ".0/24"
    settings = {
        "plm_rsh_agent": f"ssh -F {nodes.ssh_config}",
        "plm_rsh_no_tree_spawn": "1",
        "oob_tcp_if_include": network,
        "btl_tcp_if_include": network,
        "btl": "self,tcp",
        "pml": "ob1",
    }
    return ["--allow-run-as-root", *(word for item in settings.items() for word in ("--mca", *item))]


def mpirun(nodes: Nodes, names: Iterable[str], count: int, *command: str) -> list[str]:
    """The command line that runs a command on these hosts, by turns."""
    file = str(hostfile(nodes, names))
    return ["mpirun", *mpi_options(nodes), "--hostfile", file, "-np", str(count), "--map-by", "node", *command]


def demand(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        raise RuntimeError(f"{tool} is not here; install it: apt-get install {package}")
