"""How far each host of a target goes: can it be logged in to, is there a Python, can processes, ranks and stacks be
seen? Says at which step a host stops, and what to do.

The steps are those that a person would take by hand: run `date` there, look for the processes, for the ranks, for their
stacks. A host takes them all, or stops at the first that fails.
"""

from __future__ import annotations

import sys

from breakranks.cli import common
from breakranks.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from breakranks.reach.ladder import Climb

EXAMPLES = """
breakranks hosts ssh:node-[1-16]        sixteen hosts by ssh
breakranks hosts slurm:2180718          all hosts of a Slurm job
breakranks hosts mpi:hostfile           those of an MPI hostfile
breakranks hosts 'exec:kubectl exec -i {host} --@worker-[0-3]'   pods, by any command
breakranks hosts ssh:n1 --setup 'conda activate x'   where Python has to be made known first
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=common.LIVE)
    common.add_reach(parser)
    common.add_output(parser, full="a line for each host, and every step")


def run(args: argparse.Namespace) -> int:
    reaching = common.reach(args)
    if reaching is None:
        raise UsageError(
            f"{args.target or 'local'} is no target of hosts",
            "Name hosts: breakranks hosts ssh:n[1-4], or slurm:JOBID, mpi:HOSTFILE, exec:COMMAND@HOSTS",
        )
    from breakranks.reach.cluster import climbs

    reaching.meet(patient=True)
    found = climbs(reaching.fleet)
    if args.json:
        from breakranks.show.json import to_text
        from breakranks.show.ladder import ladder_json

        sys.stdout.write(to_text(ladder_json(reaching.fleet.plan.name, [one.plain() for one in found])))
    else:
        from breakranks.show.ladder import ladder_lines

        look = common.look(args)
        common.show(ladder_lines([one.plain() for one in found], look), look)
    return _status(found)


def _status(found: list[Climb]) -> int:
    if all(one.stopped is None for one in found):
        return 0
    return 1 if any(one.steps and one.steps[0].fine for one in found) else 2
