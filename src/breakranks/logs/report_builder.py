"""Make the report of a job from what was gathered: each attempt with its first cause, its victims and its exits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from breakranks.logs.crash_report import (
    TIMEOUT,
    AttemptReport,
    CrashReport,
    FirstCause,
    ReportExit,
    ReportGroup,
    ReportLine,
    StuckCall,
)
from breakranks.logs.exit_meanings import signal_of
from breakranks.logs.failure_groups import Attempt, FailureCollector, is_launcher_report
from breakranks.logs.first_cause import CERTAIN, CauseFinder
from breakranks.logs.log_events import ExitEvent
from breakranks.logs.rank_naming import name_ranks
from breakranks.rankset import RankSet

_MAX_TIMEOUTS = 1000


def build_report(collector: FailureCollector, world: int = 0) -> CrashReport:
    """Return the report. ``world``: how many ranks the job has, if that is known."""
    attempts = [collector.attempts[number] for number in sorted(collector.attempts)] or [Attempt(number=0)]
    several_hosts = False
    for attempt in attempts:
        several_hosts = name_ranks(attempt) or several_hosts
    known = set(collector.ranks if several_hosts else collector.ranks | collector.local_ranks).union(
        *(attempt.ranks for attempt in attempts)
    )
    # Ranks are numbered without gaps: in a log of all ranks, one that printed nothing exists too.
    ranks = RankSet(known) | RankSet.span(0, max(world, max(known, default=-1) + 1 if collector.merged else 0))
    reports = tuple(_attempt_report(attempt, ranks) for attempt in attempts)
    return CrashReport(
        attempts=reports,
        ranks=ranks,
        world=world,
        dumps=tuple(path for path, dump in collector.dumps.items() if dump.kind == "recorder"),
        cores=tuple(path for path, dump in collector.dumps.items() if dump.kind == "core"),
        earlier_runs=collector.earlier_runs,
    )


def with_recorded(report: CrashReport, culprits: str, confidence: str) -> CrashReport:
    """Return the report of a timeout with what flight recorder dumps show: which ranks did not enter the call."""
    cause, ranks = report.cause, RankSet.parse(culprits)
    if cause is None or cause.kind != TIMEOUT or not ranks or cause.confidence == confidence == CERTAIN:
        return report
    stuck = cause.stuck if cause.stuck is not None else StuckCall()
    stuck = replace(stuck, waiting=stuck.waiting - ranks)
    told = replace(cause, ranks=ranks, confidence=confidence, stuck=stuck, grounds=("recorder-dumps",))
    last = replace(report.last, cause=told, victims=(report.ranks | stuck.waiting) - ranks)
    return replace(report, attempts=(*report.attempts[:-1], last))


def _attempt_report(attempt: Attempt, ranks: RankSet) -> AttemptReport:
    cause = CauseFinder(attempt, ranks).find()
    explained = {group.row.key for group in attempt.exceptions.values() if group.row is not None}
    return AttemptReport(
        number=attempt.number,
        cause=cause,
        victims=victims_of(cause, ranks, attempt),
        groups=tuple(
            ReportGroup(
                ranks=group.rank_set,
                count=group.count,
                raised=group.raised,
                role=group.role,
                handled=group.handled,
                known=group.row.key if group.row is not None else "",
                line=group.first,
                thread=group.thread,
            )
            for group in attempt.exceptions.values()
            if not is_launcher_report(group.raised)
        ),
        exits=_folded_exits(attempt.exits),
        lines=tuple(
            ReportLine(
                key=group.key,
                ranks=RankSet(group.ranks),
                count=group.count,
                values=group.values,
                role=group.role,
                line=group.first,
            )
            for group in attempt.known.values()
            if group.key not in explained
        ),
        timeouts=tuple(attempt.timeouts[:_MAX_TIMEOUTS]),
        more=attempt.more,
    )


def victims_of(cause: FirstCause | None, ranks: RankSet, attempt: Attempt) -> RankSet:
    """Return the ranks that failed because of the cause: all others, once a rank that failed ends the job."""
    if cause is None or not cause.ranks:
        return RankSet()
    return (ranks | RankSet(attempt.ranks)) - cause.ranks


def _folded_exits(events: Iterable[ExitEvent]) -> tuple[ReportExit, ...]:
    """Return one row per way of ending. What several reporters say of one rank is one exit."""
    by_rank: dict[object, ExitEvent] = {}
    for event in events:
        key = event.rank if event.rank >= 0 else ("pid", event.pid) if event.pid > 0 else (event.code, event.signal)
        known = by_rank.get(key)
        by_rank[key] = event if known is None else _more_telling(known, event)
    folded: dict[tuple[object, ...], tuple[ExitEvent, set[int]]] = {}
    for event in by_rank.values():
        row = folded.setdefault((event.code, event.signal, event.role), (event, set()))
        if event.rank >= 0:
            row[1].add(event.rank)
    return tuple(
        ReportExit(
            ranks=RankSet(ranks),
            code=event.code,
            signal=signal_of(event.code, event.signal),
            core_dumped=event.core_dumped,
            reporter=event.reporter,
            role=event.role,
            launcher_first=event.first,
            error_file=event.error_file,
        )
        for event, ranks in folded.values()
    )


def _more_telling(known: ExitEvent, event: ExitEvent) -> ExitEvent:
    """Return the event that says how a process ended, with what the other adds."""
    tells = event.signal or event.code >= 0
    best, other = (event, known) if tells and not (known.signal or known.code >= 0) else (known, event)
    return replace(
        best,
        core_dumped=best.core_dumped or other.core_dumped,
        first=best.first or other.first,
        error_file=best.error_file or other.error_file,
        time=best.time or other.time,
        pid=best.pid if best.pid > 0 else other.pid,
    )
