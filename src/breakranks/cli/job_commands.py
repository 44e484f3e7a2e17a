"""What a console does besides asking: other commands on the same job, and ending it."""

from __future__ import annotations

import argparse
import sys

from breakranks.backend.end_job import end_job
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.main import main
from breakranks.console.debug_session import DebugSession
from breakranks.errors import UsageError
from breakranks.hosts.remote_ranks import RemoteRanks
from breakranks.jobs.found_jobs import FoundJob


def say(text: str, args: argparse.Namespace) -> None:
    if text and not args.json:
        terminal_output.show([[(text, "dim")]], terminal_output.look(args))
        sys.stdout.flush()


def elsewhere(command: str, ranks: str, session: DebugSession, args: argparse.Namespace) -> None:
    """`why` and `stacks` of this job, as on the command line. What they find is no status of ours."""
    if args.hosts_target is not None:
        there = RemoteRanks(args.hosts_target.controller, args.hosts_target.found)
        known = there.key_of(link.found for link in session.links.values())
        which = [args.target, *(["--job", known] if known else []), *target_args.reach_words(args)]
        main([command, *which, *(["--rank", ranks] if ranks else [])])
        return
    job = _job_of(session)
    pids = ",".join(str(link.found.pid) for link in session.links.values())
    which = ["--job", job.job.key] if job is not None else [f"pid:{pids}"]
    main([command, *which, *(["--rank", ranks] if ranks else [])])


def _job_of(session: DebugSession) -> FoundJob | None:
    pids = {link.found.pid for link in session.links.values()}
    for job in job_selection.find().jobs:
        if any(rank.pid in pids for rank in job.ranks):
            return job
    return None


def kill(session: DebugSession, sure: bool, args: argparse.Namespace) -> int:
    """End the job: its launcher first, which ends the ranks as it always does, then what is left."""
    if not sure:
        if not sys.stdin.isatty():
            raise UsageError("kill-job wants a yes", "In a script: kill-job yes")
        say("not ended", args)
        return 1
    if args.hosts_target is not None:
        there = RemoteRanks(args.hosts_target.controller, args.hosts_target.found).end(
            link.found for link in session.links.values()
        )
        say("the job has ended" if not there else f"still there: {', '.join(there)}", args)
        return 0 if not there else 2
    job = _job_of(session)
    pids = [link.found.pid for link in session.links.values()]
    ranks = [rank.pid for rank in job.ranks] if job is not None else []
    left = end_job(job.job.launcher_pid if job is not None else 0, sorted({*pids, *ranks}))
    say("the job has ended" if not left else f"still there: pid {', '.join(map(str, left))}", args)
    return 0 if not left else 2
