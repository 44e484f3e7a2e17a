"""The sentences of a crash report: the first cause, how certain it is, what to do."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Iterator

from breakranks.logs.crash_report import (
    EXIT,
    LAUNCHER_FAILED,
    OUT_OF_MEMORY,
    SIGNAL,
    TIMEOUT,
    AttemptReport,
    CrashReport,
    FirstCause,
    ReportExit,
    StuckCall,
)
from breakranks.logs.exit_meanings import meaning
from breakranks.logs.known_lines import row_of
from breakranks.logs.log_events import TEARDOWN, Raised
from breakranks.rankset import RankSet, ranks_text
from breakranks.show.quantities import duration, plural
from breakranks.show.wording.grammar import noun, verb

_NO_RANK = "a rank that the log does not name"
_SOURCE = re.compile(r"(?<=: )\[/\S+:\d+\] ")
_GROUNDS = {
    "kernel-oom": "the kernel or the scheduler reports that memory ran out",
    "rank-by-exit": "the traceback names no rank; these ranks ended with an error",
    "rank-by-absence": "the traceback names no rank; of these ranks no other exception is known",
    "killed-without-proof": "a process is killed when memory runs out, but any process may have sent the signal",
    "first-by-time": "several ranks failed on their own; this one has the earliest time",
    "first-in-log": "several ranks failed on their own; this one is the first in the log",
    "fewest-ranks": "several ranks failed on their own, and the logs do not show which was first",
    "swallowed": "the rank handled this exception and went on; then it did not enter the call that the others wait for",
    "watchdog-numbers": "the watchdogs report the last call that each rank entered",
    "named-absent": "the error of the waiting ranks names these ranks",
    "other-call": "the watchdogs report another operation for the same call number on these ranks",
    "other-operation": "every rank timed out, and these ranks in another operation than most",
    "recorder-dumps": "the flight recorder dumps that the log names show the last call of each rank",
    "silent-ranks": "these ranks did not report the timeout; all others did",
    "absent-unknown": "every rank whose log was read reports the timeout, so the logs do not show who was absent",
    "handled": "the exception was handled, and nothing else explains the failure",
    "in-thread": "the exception ended a thread, and nothing else explains the failure",
    "no-traceback": "the process ended with an error status and printed no traceback",
    "gone-silently": "the other ranks lost their connection to a rank that was gone; of these ranks there is no error",
    "signal-from-outside": "the launcher observed this end first; it did not send the signal itself",
    "only-teardown": "the logs show only that the job was ended from outside",
    "only-effects": "the logs contain only effects: an exception says that another rank was gone",
    "only-launcher": "only the launcher reports the failure; no rank printed a reason",
}
_CONFIDENCE = {
    "certain": "every other failure follows from it",
    "likely": "the evidence points to this and does not exclude another cause",
    "guess": "there is little evidence; check before you act",
}
_RESTART = {
    "yes": "a restart without a change is likely to help",
    "no": "a restart without a change will fail again",
    "perhaps": "a restart without a change may help",
}
_AREA = {
    "workload": "the program or its data",
    "infrastructure": "the machines, the network or the scheduler",
    "either": "the program or the machines",
}


def cause_sentence(cause: FirstCause) -> str:
    """Return the first cause as one sentence without a full stop."""
    who = ranks_text(cause.ranks) if cause.ranks else "the command" if cause.alone else _NO_RANK
    number = max(1, len(cause.ranks))
    if cause.swallowed and cause.raised is not None and cause.stuck is not None:
        return (
            f"{who} handled {exception_text(cause.raised)} and went on, and did not enter {call_name(cause.stuck)}, "
            f"which {_waiting(cause.stuck)}"
        )
    if cause.swallowed and cause.raised is not None:
        return f"{who} handled {exception_text(cause.raised)} and went on"
    if cause.kind == TIMEOUT and cause.stuck is not None:
        if not cause.ranks:
            return (
                f"{call_name(cause.stuck)} timed out{_after(cause.stuck)}; the logs do not show on which rank it failed"
            )
        return f"{who} did not enter {call_name(cause.stuck)}, which {_waiting(cause.stuck)}"
    if "gone-silently" in cause.grounds:
        ended = f" with exit code {cause.code}" if cause.code >= 0 else ""
        return f"{who} ended{ended} without an error message, and the other ranks lost their connection"
    if "only-effects" in cause.grounds and cause.raised is not None:
        return f"a rank was gone before the others failed with {exception_text(cause.raised)}"
    if cause.kind == OUT_OF_MEMORY and cause.raised is None:
        killed = f"{who} {verb(number, 'were')} killed" if cause.ranks else "a process of the job was killed"
        return f"{killed} because memory ran out"
    if cause.raised is not None and cause.signal:
        return f"{who} crashed: {exception_text(cause.raised)}"
    if cause.raised is not None:
        return f"{who} failed with {exception_text(cause.raised)}"
    if cause.signal:
        return f"{who} ended by {signal_name(cause.signal)}: {meaning(-1, cause.signal, cause.core_dumped).words}"
    if cause.known:
        return f"{who if cause.ranks else 'the log'} reports: {row_of(cause.known).meaning.rstrip('.')}"
    if cause.code >= 0:
        ended = f"{who} ended" if cause.kind == EXIT else "the launcher ended"
        return f"{ended} with exit code {cause.code}: {meaning(cause.code, 0).words}"
    if cause.kind == LAUNCHER_FAILED:
        return "the launcher failed"
    return f"{who} failed"


def exception_text(raised: Raised, most: int = 160) -> str:
    """Return the last line of a traceback, without the path in torch's sources that some messages begin with.

    >>> exception_text(Raised(type="RuntimeError", message="[/pytorch/gloo/tcp/pair.cc:553] Connection closed"))
    'RuntimeError: Connection closed'
    """
    text = _SOURCE.sub("", raised.text, count=1)
    return text if len(text) <= most else text[: most - 1] + "…"


def call_name(call: StuckCall) -> str:
    name = (call.operation or "a collective").lower()
    number = f" #{call.sequence}" if call.sequence >= 0 else ""
    return f"{name}{number}{f' of group {call.group}' if call.group else ''}"


def _waiting(call: StuckCall) -> str:
    if not call.waiting:
        return f"timed out{_after(call)}"
    return f"{ranks_text(call.waiting)} waited for{_after(call)}"


def _after(call: StuckCall) -> str:
    return f" for {duration(call.timeout_ms / 1000)}".replace(" for", " after", 1) if call.timeout_ms > 0 else ""


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def because_of(cause: FirstCause) -> str:
    """Return why the confidence is what it is."""
    told = [_GROUNDS[ground] for ground in cause.grounds if ground in _GROUNDS]
    return "; ".join(told) or _CONFIDENCE[cause.confidence]


def advice_of(cause: FirstCause) -> str:
    """Return whose fault it is, and whether a restart may help."""
    return f"{_AREA[cause.area]}: {_RESTART[cause.restart]}"


def victims_sentence(attempt: AttemptReport) -> str:
    """Return what happened to the other ranks: how they failed, the most frequent first."""
    told: list[str] = []
    seen = RankSet()
    for group in sorted(attempt.groups, key=lambda group: -group.count):
        ranks = (group.ranks & attempt.victims) - seen
        if ranks and not group.handled:
            told.append(f"{exception_text(group.raised, 90)} ({ranks})")
            seen |= ranks
    for row in attempt.exits:
        ranks = (row.ranks & attempt.victims) - seen
        if ranks:
            told.append(f"{exit_words(row)} ({ranks})")
            seen |= ranks
    return "; ".join(told[:4])


def exit_words(row: ReportExit) -> str:
    """Return ``exit code 1: ended with an error`` or ``SIGKILL: killed``."""
    words = meaning(row.code, row.signal, row.core_dumped).words
    if row.signal and row.role == TEARDOWN:
        return f"{signal_name(row.signal)}: ended by the launcher or the scheduler"
    if row.signal:
        return f"{signal_name(row.signal)}: {words}"
    return f"exit code {row.code}: {words}" if row.code >= 0 else words


def next_steps(report: CrashReport) -> Iterator[str]:
    """Yield what to do next: commands first."""
    cause = report.cause
    if cause is None:
        return
    known = row_of(cause.known) if cause.known else None
    if known is not None and known.advice:
        yield known.advice
    if report.dumps:
        yield f"breakranks why {_folder(report.dumps)}   # the flight recorder dumps that the log names"
    if report.cores:
        yield f"gdb -c {report.cores[0]}   # the core file that the log names"
    if cause.kind == SIGNAL and known is None and not report.of_run:
        yield "breakranks run -- COMMAND   # prints the Python stack of a crash and keeps the output of each rank"
    if cause.kind == TIMEOUT and not report.dumps:
        yield "breakranks run --on-hang 60 -- COMMAND   # explains the hang while the ranks still stand"
    if cause.restart == "yes":
        yield "start the job again; if it fails at the same host, exclude that host"


def _folder(paths: tuple[str, ...]) -> str:
    return paths[0].rpartition("/")[0] or "."


def attempts_sentence(report: CrashReport) -> str:
    """Return how often the launcher restarted the job, and whether for the same reason."""
    earlier = report.attempts[:-1]
    if not earlier:
        return ""
    texts = {cause_sentence(attempt.cause) for attempt in report.attempts if attempt.cause is not None}
    same = "each failed alike" if len(texts) == 1 else "they failed differently"
    return f"the launcher started the job {plural(len(report.attempts), 'time')}; {same}; this is the last attempt"


def read_sentence(report: CrashReport) -> str:
    """Return what was read: ``9 files, 12 MB``."""
    size = f"{report.bytes_read / 1e6:,.1f} MB" if report.bytes_read >= 1e5 else f"{report.bytes_read:,} bytes"
    return f"{report.files:,} {noun(report.files, 'file')}, {size}"
