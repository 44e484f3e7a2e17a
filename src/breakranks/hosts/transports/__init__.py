"""Transports to the hosts of a job: from a target to the local processes that carry lines there and back.

    made = plan(Hosts("ssh", "n[1-4]"), TransportOptions(), remote)

Each transport is a module. Nothing here starts an agent or reads what one says: the controller runs the transports.
"""

from __future__ import annotations

from breakranks.hosts.transports.connect_errors import judge
from breakranks.hosts.transports.exec_template import plan_command
from breakranks.hosts.transports.mpi import plan_mpi
from breakranks.hosts.transports.pdsh import plan_pdsh
from breakranks.hosts.transports.slurm import plan_slurm
from breakranks.hosts.transports.ssh import plan_ssh
from breakranks.hosts.transports.transport import HostPlan, LostHost, Remote, Transport, TransportOptions
from breakranks.jobs.targets import Hosts

__all__ = ["HostPlan", "LostHost", "Remote", "Transport", "TransportOptions", "diagnose", "plan"]


def plan(target: Hosts, options: TransportOptions, remote: Remote) -> HostPlan:
    """How to reach the hosts of a target. ``remote(piece)`` is the command to run on each.

    Raises :class:`~breakranks.errors.UsageError` where nothing can be reached at all: a node set that makes no
    sense, a tool that is not here, a Slurm job that has ended. A host that is known to be
    lost is in ``HostPlan.lost``.
    """
    match target.scheme:
        case "ssh":
            return plan_ssh(target.where, options, remote)
        case "exec":
            return plan_command(target.where, target.template, remote)
        case "pdsh":
            return plan_pdsh(target.where, options, remote)
        case "slurm":
            return plan_slurm(target.where, options, remote)
        case "mpi":
            return plan_mpi(target.where, options, remote)
    raise AssertionError(target.scheme)


def diagnose(scheme: str, host: str, status: int | None, text: str) -> LostHost:
    """Why a transport ended, from its exit status (None: it was ended at the deadline) and what it said on stderr."""
    return judge(scheme, host, status, text)
