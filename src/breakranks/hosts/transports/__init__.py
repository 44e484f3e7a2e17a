"""Transports to the hosts of a job: from a target to the local processes that carry lines to its hosts and back.

    host_plan = plan(Hosts("ssh", "n[1-4]"), TransportOptions(), remote)

Each scheme is a module. They only plan: ``hosts.transport_loop`` starts the transports and reads their lines.
"""

from __future__ import annotations

from breakranks.hosts.transports.connect_errors import judge
from breakranks.hosts.transports.exec_template import plan_command
from breakranks.hosts.transports.mpi import plan_mpi
from breakranks.hosts.transports.pdsh import plan_pdsh
from breakranks.hosts.transports.slurm import plan_slurm
from breakranks.hosts.transports.ssh import plan_ssh
from breakranks.hosts.transports.transport_plan import HostPlan, LostHost, Remote, Transport, TransportOptions
from breakranks.jobs.targets import Hosts

__all__ = ["HostPlan", "LostHost", "Remote", "Transport", "TransportOptions", "diagnose", "plan"]


def plan(target: Hosts, options: TransportOptions, remote: Remote) -> HostPlan:
    """Return how to reach the hosts of a target. ``remote(piece)`` is the command to run on each.

    Raise :class:`~breakranks.errors.UsageError` if no host can be reached: for an invalid node set, a missing tool, a
    Slurm job that has ended. Single hosts that are known to be lost are in ``HostPlan.lost``.
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
    """Return why a transport ended, from its exit status (None: ended at the deadline) and its output."""
    return judge(scheme, host, status, text)
