"""Which job a console is about, among those whose agents can be reached."""

from __future__ import annotations

from collections.abc import Sequence

from breakranks.backend.found_agents import FoundAgent
from breakranks.errors import ManyJobsError, NoJobError
from breakranks.rankset import RankSet, ranks_text

_NO_AGENT = (
    "To debug a job that is running: breakranks attach.\n"
    "To prepare a job: put breakranks.breakpoint() where it should stop, and start it. The console finds the job "
    "when a rank reaches that line."
)


def only_job(agents: Sequence[FoundAgent]) -> str | None:
    """The job, if there is one alone, or one alone that has stopped. Raises ManyJobsError."""
    jobs = sorted({agent.job for agent in agents})
    if len(jobs) > 1:
        stopped = sorted({agent.job for agent in agents if agent.debugging})
        if len(stopped) == 1:
            return stopped[0]
        rows = (_job_text([agent for agent in agents if agent.job == job]) for job in jobs)
        raise ManyJobsError(f"{len(jobs)} jobs with breakpoints are here", "Choose one:\n" + "\n".join(rows))
    return jobs[0] if jobs else None


def _job_text(agents: Sequence[FoundAgent]) -> str:
    where = next((f", at {agent.place}" for agent in agents if agent.place), "")
    ranks = ranks_text(RankSet(agent.rank for agent in agents))
    return f"  --job {agents[0].job}   {agents[0].program}, {ranks}{where}"


def named_job(agents: Sequence[FoundAgent], name: str) -> str | None:
    """The job whose name begins with ``name``, or has it as a part, such as its port. Raises ManyJobsError."""
    jobs = sorted({agent.job for agent in agents})
    fitting = [job for job in jobs if job.startswith(name)] or [job for job in jobs if name in job.split("-")]
    if len(fitting) > 1:
        raise ManyJobsError(f"{name!r} matches {len(fitting)} jobs", "They are: " + ", ".join(fitting))
    return fitting[0] if fitting else None


def no_job(name: str | None) -> NoJobError:
    """The error where no agent can be reached."""
    if name is not None:
        return NoJobError(f"no rank of job {name!r} has reached a breakpoint here", _NO_AGENT)
    return NoJobError("no rank here has reached a breakpoint", _NO_AGENT)
