"""The crash report as JSON: schema 1, of ``logs --json`` and ``run --report``. Fields are added, never renamed."""

from __future__ import annotations

from breakranks.explain.diagnosis import Finding
from breakranks.logs.crash_report import TIMEOUT, AttemptReport, CrashReport, FirstCause, ReportExit, ReportGroup
from breakranks.logs.known_lines import row_of
from breakranks.logs.log_events import Raised
from breakranks.show.json_output import SCHEMA, Object, finding_json, frame_json, where_json
from breakranks.show.wording.crash_wording import because_of, cause_sentence, exit_words, next_steps, signal_name
from breakranks.show.wording.finding_wording import summary
from breakranks.snapshot.model import Frame


def report_json(report: CrashReport) -> Object:
    """Return the whole report. The fields of the last attempt are at the top."""
    return {
        "schema": SCHEMA,
        **attempt_json(report.last),
        "attempts": [attempt_json(attempt) for attempt in report.attempts],
        "ranks": str(report.ranks),
        "last_step": report.progress,
        "next": list(next_steps(report)),
        "dumps": list(report.dumps),
        "cores": list(report.cores),
        "files": report.files,
        "bytes": report.bytes_read,
        "problems": list(report.problems),
        "older_runs": list(report.older),
        "earlier_runs_in_log": report.earlier_runs,
    }


def with_verdict(report: Object, finding: Finding) -> Object:
    """Return the JSON of a report whose cause is a hang that was explained while the job stood."""
    cause = {
        "ranks": finding.culprits,
        "kind": TIMEOUT,
        "exception": "",
        "where": where_json(finding.where),
        "confidence": finding.confidence,
        "summary": summary(finding),
    }
    return {**report, "cause": cause, "victims": finding.victims, "hang": finding_json(finding)}


def attempt_json(attempt: AttemptReport) -> Object:
    return {
        "attempt": attempt.number,
        "cause": None if attempt.cause is None else cause_json(attempt.cause),
        "victims": str(attempt.victims),
        "groups": [_group(group) for group in attempt.groups],
        "exits": [_exit(row) for row in attempt.exits],
        "lines": [
            {
                "key": row.key,
                "ranks": str(row.ranks),
                "count": row.count,
                "text": row.line.text.strip(),
                "role": row.role,
                "meaning": row_of(row.key).meaning,
                "advice": row_of(row.key).advice,
            }
            for row in attempt.lines
        ],
    }


def cause_json(cause: FirstCause) -> Object:
    stuck = cause.stuck
    return {
        "ranks": str(cause.ranks),
        "kind": cause.kind,
        "exception": cause.raised.text if cause.raised is not None else "",
        "where": _where(cause.where),
        "confidence": cause.confidence,
        "summary": cause_sentence(cause),
        "because": because_of(cause),
        "signal": signal_name(cause.signal) if cause.signal else "",
        "code": cause.code if cause.code >= 0 else None,
        "swallowed": cause.swallowed,
        "area": cause.area,
        "restart_helps": cause.restart,
        "known": cause.known,
        "source": cause.line.source if cause.line is not None else "",
        "stuck": None
        if stuck is None
        else {
            "operation": stuck.operation,
            "sequence": stuck.sequence if stuck.sequence >= 0 else None,
            "group": stuck.group,
            "waiting": str(stuck.waiting),
            "timeout_seconds": stuck.timeout_ms / 1000 if stuck.timeout_ms > 0 else None,
        },
    }


def _group(group: ReportGroup) -> Object:
    return {
        "ranks": str(group.ranks),
        "count": group.count,
        "exception": group.raised.text,
        "frames": [frame_json(frame) for frame in group.raised.frames],
        "message": group.raised.message,
        "role": group.role,
        "handled": group.handled,
        "thread": group.thread,
        "chain": [_raised(cause) for cause in _causes(group.raised)],
    }


def _causes(raised: Raised) -> list[Raised]:
    found = []
    while raised.cause is not None:
        raised = raised.cause
        found.append(raised)
    return found


def _raised(raised: Raised) -> Object:
    return {"exception": raised.text, "frames": [frame_json(frame) for frame in raised.frames]}


def _exit(row: ReportExit) -> Object:
    return {
        "ranks": str(row.ranks),
        "code": row.code if row.code >= 0 else None,
        "signal": signal_name(row.signal) if row.signal else "",
        "meaning": exit_words(row),
        "core_dumped": row.core_dumped,
        "reporter": row.reporter,
        "role": row.role,
        "error_file": row.error_file,
    }


def _where(frame: Frame | None) -> Object | None:
    return None if frame is None else {"function": frame.function, "file": frame.file, "line": frame.line}
