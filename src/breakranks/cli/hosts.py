"""Check each host of a target: login, Python, processes, ranks and stacks.

The checks are the steps of an inspection by hand: run `date`, list the processes, find the ranks, read their stacks. A
host passes them all, or stops at the first that fails. The output names the failed check, the reason and the remedy.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import FAILED, FOUND, OK
from breakranks.errors import UsageError
from breakranks.hosts.host_check import HostCheck
from breakranks.jobs.targets import Hosts, parse_target
from breakranks.show.host_check_lines import check_lines, host_check_json
from breakranks.show.json_output import to_text

EXAMPLES = """
breakranks hosts ssh:node-[1-16]                                 sixteen hosts by ssh
breakranks hosts slurm:2180718                                   all hosts of a Slurm job
breakranks hosts mpi:hostfile                                    the hosts of an MPI hostfile
breakranks hosts 'exec:kubectl exec -i {host} --@worker-[0-3]'   pods, by any command
breakranks hosts ssh:n1 --setup 'conda activate x'               with a command that makes Python available
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target_args.HOSTS)
    target_args.add_reach(parser)
    target_args.add_output(parser, full="print a line for each host, and every check")


def run(args: argparse.Namespace) -> int:
    target = parse_target(args.target)
    if not isinstance(target, Hosts):
        raise UsageError(
            f"{args.target} does not name hosts" if args.target else "no target",
            "Name the hosts: breakranks hosts ssh:n[1-4], or slurm:JOBID, mpi:HOSTFILE, exec:COMMAND@HOSTS",
        )

    with closing(job_selection.hosts_backend(target, args)) as backend:
        checks = backend.checks()
    plain = [check.plain() for check in checks]
    if args.json:
        sys.stdout.write(to_text(host_check_json(backend.name, plain)))
    else:
        look = terminal_output.look(args)
        terminal_output.show(check_lines(plain, look), look)
    return _status(checks)


def _status(checks: list[HostCheck]) -> int:
    if all(check.stopped is None for check in checks):
        return OK
    return FOUND if any(check.steps and check.steps[0].fine for check in checks) else FAILED
