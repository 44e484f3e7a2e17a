"""What ``breakranks collectives --json`` prints: schema 1. It stays compatible: fields are added, never renamed."""

from __future__ import annotations

from collections.abc import Sequence

from breakranks.explain.collectives.collective_progress import CollectiveProgress
from breakranks.explain.collectives.group_progress import CallTime, GroupProgress, ProgressRow, moments
from breakranks.explain.collectives.wait_ages import seconds_since
from breakranks.rankset import RankSet
from breakranks.show.collective_lines import unread
from breakranks.show.json_output import SCHEMA, Object, job_json


def collectives_json(
    progress: CollectiveProgress, chosen: Sequence[GroupProgress], *, history: int = 0, ranks: RankSet | None = None
) -> Object:
    """Return these groups, the most troubled first, and every pending send and recv."""
    snapshot = progress.snapshot
    missing = [{"ranks": missing.ranks, "why": f"{missing.reason}: {missing.detail}"} for missing in snapshot.missing]
    return {
        "schema": SCHEMA,
        "job": job_json(snapshot),
        "groups": [group_json(progress, group, history) for group in chosen],
        "transfers": _transfers(progress, ranks),
        "unread": [*({"ranks": str(who), "why": what} for who, what, _ in unread(snapshot)), *missing],
        "problems": [{"what": problem.what, "remedy": problem.remedy} for problem in dict.fromkeys(snapshot.problems)],
        "time": snapshot.time,
    }


def group_json(progress: CollectiveProgress, standing: GroupProgress, history: int = 0) -> Object:
    group = progress.group(standing.group)
    return {
        "name": group.name,
        "description": group.description,
        "ranks": str(standing.members),
        "members_from": group.source,
        "backend": group.backend,
        "timeout": group.timeout or None,
        "at": [_row(progress, row) for row in standing.rows],
        "not_entered": str(standing.not_entered),
        "unseen": str(standing.unseen),
        "waiting": str(standing.waiting),
        "awaited": str(standing.awaited),
        "differs_at": standing.mismatch.number if standing.mismatch is not None else None,
        "history": [_moment(progress, moment) for moment in moments(progress, standing, history)] if history else [],
    }


def _row(progress: CollectiveProgress, row: ProgressRow) -> Object:
    return {
        "ranks": str(row.ranks),
        "number": row.number,
        "completed": row.completed,
        **_operation(progress, row.operations[0]),
        "state": row.state,
        "seconds": _rounded(row.seconds),
        "waits_in": row.waits_in or None,
        "waits_seconds": _rounded(row.waits_seconds),
        "not_entered": row.awaited or None,
        "stale": row.stale,
    }


def _moment(progress: CollectiveProgress, moment: CallTime) -> Object:
    return {
        "number": moment.number,
        "differs": moment.differs,
        "calls": [{"ranks": str(ranks), **_operation(progress, row)} for ranks, row in moment.calls],
        "not_entered": str(moment.not_entered),
        "forgotten": str(moment.forgotten),
    }


def _operation(progress: CollectiveProgress, row: int) -> Object:
    operation = progress.operation(row)
    return {
        "operation": progress.name(row),
        "inputs": operation.inputs,
        "outputs": operation.outputs,
        "types": operation.types,
    }


def _transfers(progress: CollectiveProgress, ranks: RankSet | None) -> list[Object]:
    return [
        {
            "rank": rank,
            "sends": transfer.sends,
            "peer": transfer.peer if transfer.peer >= 0 else None,
            "group": progress.group(transfer.group).name,
            "seconds": _rounded(seconds_since(progress, rank, transfer.entry)),
        }
        for rank, recorder in progress.recorders.items()
        for transfer in recorder.transfers
        if ranks is None or rank in ranks or transfer.peer in ranks
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
