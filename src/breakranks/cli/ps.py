"""The jobs on this machine: launcher, size, age, and each rank's process.

The key of a job is what --job takes. CPU is the share of one core since the process started. A rank's
helpers are its child processes: data-loader workers, compilers. Ranks that should exist and do not are named.
"""

from __future__ import annotations

import sys

from breakranks.cli import common
from breakranks.errors import BreakranksError
from breakranks.snapshot.model import Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from breakranks.cli.reaching import Reaching
    from breakranks.jobs.find import FoundJob
    from breakranks.snapshot.model import Problem

EXAMPLES = """
breakranks ps                  every job on this machine
breakranks ps ssh:node-[1-4]   every job on these hosts
breakranks ps slurm:           your running jobs in Slurm
breakranks ps --job torchrun-29500
breakranks ps --json           for programs
breakranks ps hang.brk         the job in a file
"""


def configure(parser: argparse.ArgumentParser) -> None:
    common.add_target(parser)
    common.add_output(parser, full="a row for each rank, however many; whole commands and paths")


def run(args: argparse.Namespace) -> int:
    if args.target == "slurm:":
        return _list_slurm(args)
    jobs, problems = _jobs(args)
    ranks = None
    if args.rank is not None:
        missing = [one for job in jobs for one in job.missing]
        ranks = common.chosen_ranks(args.rank, (rank.rank for job in jobs for rank in job.ranks), missing)
    if args.json:
        from breakranks.show.json import ps_json, to_text

        sys.stdout.write(to_text(ps_json(jobs, ranks, problems)))
        return 0
    from breakranks.show.table import ps_lines

    look = common.look(args)
    common.show(ps_lines(jobs, look, ranks=ranks, problems=problems), look)
    return 0


def _jobs(args: argparse.Namespace) -> tuple[list[Snapshot], tuple[Problem, ...]]:
    from breakranks.jobs.targets import Local, parse_target, select

    reaching = common.reach(args)
    if reaching is not None:
        return _on_hosts(reaching, args)
    if not isinstance(parse_target(args.target), Local) or args.job is not None:
        target = common.resolve(args)
        common.need_processes(target, args.target)
        return [target if isinstance(target, Snapshot) else _look(target)], ()
    found = common.find()
    if not found.jobs:
        select(found)  # raises, with what was looked for
        raise BreakranksError("no job on this machine")
    return [_look(job) for job in found.jobs], found.problems


def _list_slurm(args: argparse.Namespace) -> int:
    """The user's running jobs in Slurm: what may follow the colon."""
    from breakranks.reach.ways.slurm import jobs_text, slurm_jobs

    found = slurm_jobs()
    if args.json:
        from breakranks.show.json import to_text

        rows = [
            {"target": f"slurm:{job.id}", "nodes": job.nodes, "elapsed": job.elapsed, "name": job.name} for job in found
        ]
        sys.stdout.write(to_text({"schema": 1, "slurm": rows}))
    elif found:
        print(jobs_text(found))
    else:
        print("you have no running job in Slurm")
    return 0


def _on_hosts(reaching: Reaching, args: argparse.Namespace) -> tuple[list[Snapshot], tuple[Problem, ...]]:
    """Every job of all hosts, or one of them."""
    from breakranks.reach.cluster import ClusterSession

    reaching.meet(patient=True)
    jobs = (reaching.job(args.job),) if args.job is not None else reaching.jobs() or (reaching.job(None),)
    found = []
    for job in jobs:
        session = ClusterSession(reaching.fleet, job)
        session.sample(samples=0)
        found.append(session.snapshot())
    return found, reaching.problems()


def _look(found: FoundJob) -> Snapshot:
    from breakranks.reach.local import Session

    # No samples: what the process table says is all that ps shows, and nobody is paused for it.
    return Session(found).snapshot()
