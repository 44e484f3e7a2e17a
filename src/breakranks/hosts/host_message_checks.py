"""Data from hosts is not trusted: it is decoded and checked here before it is used."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from breakranks.errors import SnapshotError, UsageError
from breakranks.hosts.host_messages import REPORTS, Report
from breakranks.jobs.found_jobs import FoundJob, LocalJobs
from breakranks.rankset import MAX_RANK, RankSet
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.snapshot_file import fault, is_time

MAX_HOST_SNAPSHOT_BYTES = 1 << 27  # unpacked
_MAX_HOST_RANKS = 65_536
_MAX_PARTS = 16
_MAX_TEXT_CHARACTERS = 500
VERSION_REMEDY = "Install the same version of breakranks on both sides, or none on the host."


class _Envelope(msgspec.Struct):
    """The kind of a message. Its other fields are decoded once that is known."""

    type: str


def report_of(body: bytes) -> Report:
    """Return the report in a message. Raises ValueError or RecursionError for anything else."""
    name = msgspec.json.decode(body, type=_Envelope).type
    kind = REPORTS.get(name)
    if kind is None:
        raise ValueError("not the type of a report")
    return msgspec.json.decode(body, type=kind)


def snapshot_of(data: bytes) -> Snapshot:
    """Return the snapshot that a host packed. The message of a :class:`SnapshotError` continues "its snapshot"."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, MAX_HOST_SNAPSHOT_BYTES)
        if not unpacker.eof:
            raise ValueError("it is cut off, or larger than any snapshot")
        snapshot = msgspec.json.decode(text, type=Snapshot)
    except (zlib.error, ValueError, RecursionError) as error:
        raise SnapshotError(f"cannot be read ({error})", VERSION_REMEDY) from error
    wrong = fault(snapshot)
    if wrong:
        raise SnapshotError(f"contradicts itself: {wrong}", VERSION_REMEDY)
    return snapshot


def fault_of(found: LocalJobs) -> str:
    """Return what makes the jobs of a host unsafe to use, or ``""``."""
    if sum(len(job.ranks) for job in found.jobs) > _MAX_HOST_RANKS:
        return "reports more ranks than any host has"
    return next((wrong for job in found.jobs if (wrong := _job_fault(job))), "")


def _job_fault(job: FoundJob) -> str:
    if not 0 <= job.job.world_size <= MAX_RANK + 1:
        return f"reports a job of {job.job.world_size} ranks"
    if not is_time(job.job.started):
        return "reports a job whose start is not a time"
    for rank in job.ranks:
        if not 0 <= rank.rank <= MAX_RANK or rank.pid <= 0:
            return f"reports process {rank.pid} as rank {rank.rank}"
    for missing in job.missing:
        try:
            RankSet.parse(missing.ranks)
        except (UsageError, ValueError):
            return f"reports {missing.ranks[:40]!r} as missing ranks"
    return ""


class StageReport:
    """What a host reports before its agent runs. Each field has the type that it should have."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.word = _text(fields.get("stage"))
        self.what = _text(fields.get("what")) or "failed without giving a reason"
        self.help = _text(fields.get("help"))
        self.found = _texts(fields.get("found"))
        self.need: dict[str, Any] = {name: _text(fields.get(name)) for name in ("python", "suffix", "machine", "magic")}
        self.need["have"] = _texts(fields.get("have"))


def _text(value: object) -> str:
    return value[:_MAX_TEXT_CHARACTERS] if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    return [_text(part) for part in value[:_MAX_PARTS]] if isinstance(value, list) else []
