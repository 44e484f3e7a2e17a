"""The jobs on this machine: launcher, size, age, and each rank's process.

The key of a job is what --job takes. CPU is the share of one core since the process started. A rank's
helpers are its child processes: data-loader workers, compilers. Ranks that should exist and do not are named.
"""

from __future__ import annotations

import argparse
import sys

from breakranks.backend.job_backend import RunningJob
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.hosts.transports.slurm import jobs_text, slurm_jobs
from breakranks.jobs.targets import Pids, parse_target
from breakranks.show.json_output import ps_json, to_text
from breakranks.show.ps_lines import ps_lines
from breakranks.snapshot.model import Problem, Snapshot

EXAMPLES = """
breakranks ps                  every job on this machine
breakranks ps ssh:node-[1-4]   every job on these hosts
breakranks ps slurm:           your running jobs in Slurm
breakranks ps --job torchrun-29500
breakranks ps --json           for programs
breakranks ps hang.brk         the job in a file
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser)
    target_args.add_output(parser, full="a row for each rank, however many; whole commands and paths")


def run(args: argparse.Namespace) -> int:
    if args.target == "slurm:":
        return _list_slurm(args)
    jobs, problems = _jobs(args)
    ranks = None
    if args.rank is not None:
        missing = [one for job in jobs for one in job.missing]
        ranks = job_selection.chosen_ranks(args.rank, (rank.rank for job in jobs for rank in job.ranks), missing)
    if args.json:
        sys.stdout.write(to_text(ps_json(jobs, ranks, problems)))
        return 0

    look = terminal_output.look(args)
    terminal_output.show(ps_lines(jobs, look, ranks=ranks, problems=problems), look)
    return 0


def _jobs(args: argparse.Namespace) -> tuple[list[Snapshot], tuple[Problem, ...]]:
    """Every job of the target, or the one that is asked for."""
    with job_selection.opened(args) as target:
        if isinstance(target, Snapshot):
            job_selection.need_processes(target, args.target)
            return [target], ()
        every = args.job is None and not isinstance(parse_target(args.target), Pids)
        found = target.jobs() if every else ()
        jobs = found or (target.job(args.job),)  # which says why there is none
        return [_look(job) for job in jobs], target.problems() if every else ()


def _list_slurm(args: argparse.Namespace) -> int:
    """The user's running jobs in Slurm: what may follow the colon."""
    found = slurm_jobs()
    if args.json:
        rows = [
            {"target": f"slurm:{job.id}", "nodes": job.nodes, "elapsed": job.elapsed, "name": job.name} for job in found
        ]
        sys.stdout.write(to_text({"schema": 1, "slurm": rows}))
    elif found:
        print(jobs_text(found))
    else:
        print("you have no running job in Slurm")
    return 0


def _look(job: RunningJob) -> Snapshot:
    # No samples: what the process table says is all that ps shows. No rank is paused, and none needs to be guarded.
    sampler = job.sampler()
    sampler.sample(samples=0)
    return sampler.snapshot()
