"""Ways to the hosts of a job: from a target to the local processes that carry lines there and back.

    plan = plan_hosts(Hosts("ssh", "n[1-4]"), Options(), remote)

Each way is a module; it is imported when it is needed, as most of the time until the first answer is import
time. Nothing here starts an agent or reads what one says: the controller runs the carriers.
"""

from __future__ import annotations

from breakranks.reach.ways.model import Carrier, Lost, Options, Plan, Remote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from breakranks.jobs.targets import Hosts

__all__ = ["Carrier", "Lost", "Options", "Plan", "Remote", "diagnose", "plan"]


def plan(target: Hosts, options: Options, remote: Remote) -> Plan:
    """How to reach the hosts of a target. ``remote(piece)`` is the command to run on each.

    Raises :class:`~breakranks.errors.UsageError` where nothing can be reached at all: a node set that makes no
    sense, a tool that is not here, a Slurm job that has ended. One host that is known to be lost is in ``Plan.lost``.
    """
    match target.scheme:
        case "ssh":
            from breakranks.reach.ways.ssh import plan_ssh

            return plan_ssh(target.where, options, remote)
        case "exec":
            from breakranks.reach.ways.command import plan_command

            return plan_command(target.where, target.template, remote)
        case "pdsh":
            from breakranks.reach.ways.pdsh import plan_pdsh

            return plan_pdsh(target.where, options, remote)
        case "slurm":
            from breakranks.reach.ways.slurm import plan_slurm

            return plan_slurm(target.where, options, remote)
        case "mpi":
            from breakranks.reach.ways.mpi import plan_mpi

            return plan_mpi(target.where, options, remote)
    raise AssertionError(target.scheme)


def diagnose(scheme: str, host: str, status: int | None, text: str) -> Lost:
    """Why a carrier ended, from its exit status (None: it was ended at the deadline) and what it said on stderr."""
    from breakranks.reach.ways.diagnosis import judge

    return judge(scheme, host, status, text)
