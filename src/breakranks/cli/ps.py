"""List the jobs on this machine or on hosts: launcher, size, age, and the process of each rank.

The key of a job is the value for --job. CPU is the share of one core since the process started. The helpers of a rank
are its child processes, such as data loader workers and compilers. Missing ranks are listed with the reason.
"""

from __future__ import annotations

import argparse
import sys

from breakranks.backend.job_backend import RunningJob
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import OK
from breakranks.hosts.transports.slurm import jobs_text, slurm_jobs
from breakranks.jobs.rank_selection import selected_ranks
from breakranks.jobs.targets import Pids, parse_target
from breakranks.show.json_output import ps_json, to_text
from breakranks.show.ps_lines import ps_lines
from breakranks.snapshot.model import Problem, Snapshot

EXAMPLES = """
breakranks ps                        every job on this machine
breakranks ps ssh:node-[1-4]         every job on these hosts
breakranks ps slurm:                 your running jobs in Slurm
breakranks ps --job torchrun-29500   one of several jobs
breakranks ps --json                 as JSON
breakranks ps hang.brk               the job in a snapshot file
"""


def configure(parser: argparse.ArgumentParser) -> None:
    target_args.add_target(parser, files=target_args.SAVED)
    target_args.add_output(parser, full="print a row for every rank, and whole commands and paths")


def run(args: argparse.Namespace) -> int:
    if args.target == "slurm:":
        return _list_slurm(args)
    jobs, problems = _jobs(args)
    missing = [entry for job in jobs for entry in job.missing]
    ranks = selected_ranks(args.rank, (rank.rank for job in jobs for rank in job.ranks), missing)
    if args.json:
        sys.stdout.write(to_text(ps_json(jobs, ranks, problems)))
        return OK

    look = terminal_output.look(args)
    terminal_output.show(ps_lines(jobs, look, ranks=ranks, problems=problems), look)
    return OK


def _jobs(args: argparse.Namespace) -> tuple[list[Snapshot], tuple[Problem, ...]]:
    """Return every job of the target, or only the chosen one, and what could not be seen."""
    with job_selection.opened(args) as target:
        if isinstance(target, Snapshot):
            job_selection.need_processes(target, args.target)
            return [target], ()
        every = args.job is None and not isinstance(parse_target(args.target), Pids)
        # If there is no job, job() raises an error that tells why.
        jobs = (target.jobs() if every else ()) or (target.job(args.job),)
        return [_snapshot(job) for job in jobs], target.problems() if every else ()


def _list_slurm(args: argparse.Namespace) -> int:
    """List the user's running jobs in Slurm, which are targets of other commands."""
    jobs = slurm_jobs(args.deadline or target_args.DEADLINE_SECONDS)
    if args.json:
        rows = [
            {"target": f"slurm:{job.id}", "nodes": job.nodes, "elapsed": job.elapsed, "name": job.name} for job in jobs
        ]
        sys.stdout.write(to_text({"schema": 1, "slurm": rows}))
    elif jobs:
        print(jobs_text(jobs))
    else:
        print("Slurm has no running job of this user")
    return OK


def _snapshot(job: RunningJob) -> Snapshot:
    # No samples: the process table has all that ps shows. No rank is stopped, so none needs the watchdog.
    sampler = job.sampler()
    sampler.sample(samples=0)
    return sampler.snapshot()
