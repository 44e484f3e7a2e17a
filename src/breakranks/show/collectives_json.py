"""What ``breakranks collectives --json`` prints: schema 1, kept compatible. Fields are added, never renamed."""

from __future__ import annotations

from collections.abc import Sequence

from breakranks.explain.collectives.progress import CollectiveProgress
from breakranks.rankset import RankSet
from breakranks.show.collective_lines import unread
from breakranks.show.group_progress import GroupProgress, Moment, ProgressRow, moments, seconds_since
from breakranks.show.json_output import SCHEMA, Object, job_json


def collectives_json(
    ledger: CollectiveProgress, chosen: Sequence[GroupProgress], *, history: int = 0, ranks: RankSet | None = None
) -> Object:
    """These groups, the most troubled first, and every pending send and recv."""
    snapshot = ledger.snapshot
    missing = [{"ranks": one.ranks, "why": f"{one.reason}: {one.detail}"} for one in snapshot.missing]
    return {
        "schema": SCHEMA,
        "job": job_json(snapshot),
        "groups": [group_json(ledger, one, history) for one in chosen],
        "transfers": _transfers(ledger, ranks),
        "unread": [*({"ranks": str(who), "why": what} for who, what, _ in unread(snapshot)), *missing],
        "problems": [{"what": one.what, "remedy": one.remedy} for one in dict.fromkeys(snapshot.problems)],
        "time": snapshot.time,
    }


def group_json(ledger: CollectiveProgress, one: GroupProgress, history: int = 0) -> Object:
    group = ledger.group(one.group)
    return {
        "name": group.name,
        "description": group.description,
        "ranks": str(one.members),
        "members_from": group.source,
        "backend": group.backend,
        "timeout": group.timeout or None,
        "at": [_row(ledger, row) for row in one.rows],
        "not_entered": str(one.not_entered),
        "unseen": str(one.unseen),
        "waiting": str(one.waiting),
        "awaited": str(one.awaited),
        "differs_at": one.mismatch.number if one.mismatch is not None else None,
        "history": [_moment(ledger, moment) for moment in moments(ledger, one, history)] if history else [],
    }


def _row(ledger: CollectiveProgress, row: ProgressRow) -> Object:
    return {
        "ranks": str(row.ranks),
        "number": row.number,
        "completed": row.completed,
        **_operation(ledger, row.operations[0]),
        "state": row.state,
        "seconds": _rounded(row.seconds),
        "waits_in": row.waits_in or None,
        "waits_seconds": _rounded(row.waits_seconds),
        "not_entered": row.awaited or None,
        "stale": row.stale,
    }


def _moment(ledger: CollectiveProgress, moment: Moment) -> Object:
    return {
        "number": moment.number,
        "differs": moment.differs,
        "calls": [{"ranks": str(ranks), **_operation(ledger, row)} for ranks, row in moment.calls],
        "not_entered": str(moment.not_entered),
        "forgotten": str(moment.forgotten),
    }


def _operation(ledger: CollectiveProgress, row: int) -> Object:
    one = ledger.operation(row)
    return {"operation": ledger.name(row), "inputs": one.inputs, "outputs": one.outputs, "types": one.types}


def _transfers(ledger: CollectiveProgress, ranks: RankSet | None) -> list[Object]:
    return [
        {
            "rank": rank,
            "sends": one.sends,
            "peer": one.peer if one.peer >= 0 else None,
            "group": ledger.group(one.group).name,
            "seconds": _rounded(seconds_since(ledger, rank, one.entry)),
        }
        for rank, recorder in ledger.recorders.items()
        for one in recorder.transfers
        if ranks is None or rank in ranks or one.peer in ranks
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
