"""The checks of a host: the steps of an inspection by hand, up to the first that fails."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from breakranks.hosts.host_messages import CheckStep
from breakranks.jobs.found_jobs import LocalJobs
from breakranks.observe import pyspy_parse
from breakranks.observe.process_table import read_table
from breakranks.observe.sigcont_guard import Watchdog
from breakranks.observe.this_host import user_name
from breakranks.rankset import RankSet, ranks_text


def host_check(found: LocalJobs) -> tuple[CheckStep, ...]:
    """Return the checks of this host, up to the first that fails."""
    steps: list[CheckStep] = []
    for step in (_date, _processes, lambda: _ranks(found), lambda: _stacks(found)):
        steps.append(step())
        if not steps[-1].fine:
            break
    return tuple(steps)


def _date() -> CheckStep:
    return CheckStep("run", True, f"as {user_name(os.geteuid())}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}")


def _processes() -> CheckStep:
    table = read_table()
    others = {entry.uid for entry in table} - {os.geteuid()}
    if others or os.geteuid() == 0 or len(table) > 50:
        return CheckStep("processes", True, f"{len(table):,} are visible")
    return CheckStep(
        "processes",
        False,
        f"only {len(table)} are visible, all of this user",
        "Is /proc mounted with hidepid? Log in as the user of the job, or use --sudo.",
    )


def _ranks(found: LocalJobs) -> CheckStep:
    if any(job.ranks for job in found.jobs):
        parts = [
            f"{ranks_text(RankSet(r.rank for r in job.ranks))} of {job.job.key}" for job in found.jobs if job.ranks
        ]
        return CheckStep("ranks", True, "; ".join(parts[:4]) + (" and more" if len(parts) > 4 else ""))
    if found.jobs:
        keys = ", ".join(job.job.key for job in found.jobs[:4])
        return CheckStep(
            "ranks", False, f"no rank has been started yet ({keys})", "See what the launcher waits for: breakranks why"
        )
    remedy = " ".join(f"{problem.what}. {problem.remedy}" for problem in found.problems)
    return CheckStep(
        "ranks", False, "no rank of any job is on this host", remedy or "Is the job on other hosts, or has it ended?"
    )


def _stacks(found: LocalJobs) -> CheckStep:
    pids = [rank.pid for job in found.jobs for rank in job.ranks]
    with Watchdog() as dog:
        for pid in pids:
            dog.guard(pid)
        stacks = pyspy_parse.sweep(pids, locals=False)
    refused = [process.problem for process in stacks.values() if process.problem is not None]
    if not refused:
        return CheckStep("stacks", True, f"of all {len(pids)} ranks" if len(pids) > 1 else "of the rank")
    return CheckStep(
        "stacks", False, f"{len(refused)} of {len(pids)} cannot be read: {refused[0].what}", refused[0].remedy
    )


class HostCheck(NamedTuple):
    """The checks of one host, of which the last may have failed."""

    host: str
    steps: tuple[CheckStep, ...]

    @property
    def stopped(self) -> CheckStep | None:
        """The check that failed."""
        return next((step for step in self.steps if not step.fine), None)

    def plain(self) -> tuple[str, tuple[tuple[str, bool, str, str], ...]]:
        return self.host, tuple((step.name, step.fine, step.what, step.remedy) for step in self.steps)
