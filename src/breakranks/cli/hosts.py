"""How far each host of a target goes: can it be logged in to, is there a Python, can processes, ranks and stacks be
seen? Says at which step a host stops, and what to do.

The steps are those that a person would take by hand: run `date` there, look for the processes, for the ranks, for their
stacks. A host takes them all, or stops at the first that fails.
"""

from __future__ import annotations

import argparse
import sys

from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.errors import UsageError
from breakranks.hosts.host_check import HostCheck
from breakranks.hosts.hosts_backend import HostsBackend
from breakranks.jobs.targets import Hosts, parse_target
from breakranks.show.host_check_lines import host_check_json, ladder_lines
from breakranks.show.json_output import to_text

EXAMPLES = """
breakranks hosts ssh:node-[1-16]        sixteen hosts by ssh
breakranks hosts slurm:2180718          all hosts of a Slurm job
breakranks hosts mpi:hostfile           those of an MPI hostfile
breakranks hosts 'exec:kubectl exec -i {host} --@worker-[0-3]'   pods, by any command
breakranks hosts ssh:n1 --setup 'conda activate x'   where Python has to be made known first
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target_args.LIVE)
    target_args.add_reach(parser)
    target_args.add_output(parser, full="a line for each host, and every step")


def run(args: argparse.Namespace) -> int:
    target = parse_target(args.target)
    if not isinstance(target, Hosts):
        raise UsageError(
            f"{args.target or 'local'} is no target of hosts",
            "Name hosts: breakranks hosts ssh:n[1-4], or slurm:JOBID, mpi:HOSTFILE, exec:COMMAND@HOSTS",
        )

    with job_selection.opened(args) as backend:
        assert isinstance(backend, HostsBackend)
        found = backend.checks()
        name = backend.controller.plan.name
    if args.json:
        sys.stdout.write(to_text(host_check_json(name, [one.plain() for one in found])))
    else:
        look = terminal_output.look(args)
        terminal_output.show(ladder_lines([one.plain() for one in found], look), look)
    return _status(found)


def _status(found: list[HostCheck]) -> int:
    if all(one.stopped is None for one in found):
        return 0
    return 1 if any(one.steps and one.steps[0].fine for one in found) else 2
