"""The crash report of a run: from the files of its folder, what its ranks registered, and the kernel's log."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from breakranks.backend.logged_dumps import with_dumps
from breakranks.errors import BreakranksError
from breakranks.explain.diagnosis import Finding
from breakranks.explain.verdict import explain
from breakranks.jobs.launchers import launcher_of
from breakranks.logs.crash_report import CrashReport
from breakranks.logs.job_logs import JobLogs
from breakranks.logs.log_events import INITIATING, ExitEvent, LogLine
from breakranks.logs.log_sources import find_sources
from breakranks.observe.oom_kills import recent_kills
from breakranks.rank.launch.launch_config import host_key
from breakranks.run.rank_registry import RankRegistration, RankRegistry
from breakranks.run.run_folder import RunFolder
from breakranks.snapshot.snapshot_file import load

_SIGNAL_BASE = 128
_CLOCK_DRIFT_SECONDS = 600.0  # the clock of the kernel's log is not corrected as others are


def job_report(
    folder: RunFolder, registry: RankRegistry, command: list[str], pid: int, status: int, began: float
) -> CrashReport:
    """Return the report of a run whose command, process ``pid``, has ended with ``status``; 128 + N for signal N."""
    registry.refresh()
    ranks = registry.registrations
    logs = JobLogs(find_sources([os.fspath(folder.path)]), world=max((found.world for found in ranks), default=0))
    logs.read()
    attempts = max((found.attempt for found in ranks), default=0)
    for event in (*_own_end(ranks, command, pid, status), *_kernel_kills(ranks, began)):
        logs.add(event)
    for found in ranks:
        if found.attempt == attempts and registry.end(found) is not None:
            logs.add_regular_end(found.rank, attempts)
        if found.host_key == host_key():
            logs.add_process(found.pid, found.rank, found.attempt)
    report = replace(with_dumps(logs.report()), of_run=True)
    is_alone = not ranks and launcher_of(tuple(command)) is None
    return _of_command(report) if is_alone else report


def _of_command(report: CrashReport) -> CrashReport:
    """Return the report of a command that is one process and no rank, as far as is known."""
    if report.cause is None:
        return report
    last = replace(report.last, cause=replace(report.cause, alone=True))
    return replace(report, attempts=(*report.attempts[:-1], last))


def hang_verdict(snapshots: list[str]) -> Finding | None:
    """Return the verdict of the newest of these snapshots."""
    for path in reversed(snapshots):
        try:
            return explain(load(path)).verdict
        except BreakranksError:  # it could not be saved whole
            continue
    return None


def _own_end(ranks: list[RankRegistration], command: list[str], pid: int, status: int) -> list[ExitEvent]:
    """Return how the command ended, if it is no launcher: then it is a rank, or the whole job."""
    if not status or launcher_of(tuple(command)) is not None:
        return []
    own = next((found.rank for found in ranks if found.pid == pid), -1)
    signal = status - _SIGNAL_BASE if status > _SIGNAL_BASE else 0
    if own < 0 and ranks:
        return []  # a script around a launcher
    return [
        ExitEvent(
            reporter="run",
            line=_line(f"exit status {status}", own),
            rank=own,
            pid=pid,
            code=-1 if signal else status,
            signal=signal,
        )
    ]


def _kernel_kills(ranks: list[RankRegistration], began: float) -> list[ExitEvent]:
    """Return the ranks of this host that the kernel has killed because memory ran out."""
    by_pid = {found.pid: found for found in ranks if found.time >= began - 1}
    found = []
    for pid, text in recent_kills(time.time() - began + _CLOCK_DRIFT_SECONDS):
        rank = by_pid.get(pid)
        if rank is not None:
            line = _line(f"the kernel killed {text}: out of memory", rank.rank, rank.attempt)
            found.append(ExitEvent(reporter="kernel", line=line, rank=rank.rank, pid=pid, signal=9, role=INITIATING))
    return found


def _line(text: str, rank: int, attempt: int = 0) -> LogLine:
    return LogLine(text, rank=rank, attempt=attempt, voice="run", source="breakranks run")
