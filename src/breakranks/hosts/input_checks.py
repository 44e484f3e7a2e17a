"""What a host says is somebody else's word: checked before anything here follows it."""

from __future__ import annotations

from typing import Any

from breakranks.errors import UsageError
from breakranks.jobs.found_jobs import FoundJob, LocalJobs
from breakranks.rankset import MAX_RANK, RankSet
from breakranks.snapshot.snapshot_file import is_time

_MAX_RANKS = 65_536  # of one host
_MAX_PARTS = 16


def fault_of(found: LocalJobs) -> str:
    """What makes the jobs of a host unsafe to follow, or ``""``."""
    if sum(len(job.ranks) for job in found.jobs) > _MAX_RANKS:
        return "says that it has more ranks than any host"
    return next((wrong for job in found.jobs if (wrong := _of_job(job))), "")


def _of_job(job: FoundJob) -> str:
    if not 0 <= job.job.world_size <= MAX_RANK + 1:
        return f"says that a job has {job.job.world_size} ranks"
    if not is_time(job.job.started):
        return "says that a job started at no time"
    for rank in job.ranks:
        if not 0 <= rank.rank <= MAX_RANK or rank.pid <= 0:
            return f"says that process {rank.pid} is rank {rank.rank}"
    for missing in job.missing:
        try:
            RankSet.parse(missing.ranks)
        except (UsageError, ValueError):
            return f"says that ranks {missing.ranks[:40]!r} are missing"
    return ""


class StageReport:
    """What a host says before its agent runs, each thing of the type that it should have."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.word = _text(said.get("stage"))
        self.what = _text(said.get("what")) or "failed, and does not say why"
        self.help = _text(said.get("help"))
        listed = said.get("found")
        self.found = [_text(one) for one in listed[:_MAX_PARTS]] if isinstance(listed, list) else []
        have = said.get("have")
        self.need: dict[str, Any] = {name: _text(said.get(name)) for name in ("python", "suffix", "machine", "magic")}
        self.need["have"] = [_text(one) for one in have[:_MAX_PARTS]] if isinstance(have, list) else []


def _text(value: object) -> str:
    return value[:500] if isinstance(value, str) else ""
