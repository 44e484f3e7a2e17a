"""What ``breakranks logs`` prints, and ``run`` at its end: the first cause, its traceback, what followed from it."""

from __future__ import annotations

from collections.abc import Iterator

from breakranks.logs.crash_report import TIMEOUT, AttemptReport, CrashReport, FirstCause, ReportGroup
from breakranks.logs.known_lines import row_of
from breakranks.logs.log_events import NOTE, TEARDOWN, Raised
from breakranks.rankset import RankSet
from breakranks.show.quantities import plural
from breakranks.show.terminal_text import WHOLE, Line, Piece, TerminalStyle, columns, short_path, wrap
from breakranks.show.wording.crash_wording import (
    advice_of,
    attempts_sentence,
    because_of,
    cause_sentence,
    exception_text,
    exit_words,
    next_steps,
    read_sentence,
    victims_sentence,
)
from breakranks.show.wording.grammar import verb
from breakranks.snapshot.code_owner import is_own

_STYLES = {"certain": "verdict", "likely": "verdict", "guess": "warn"}
_LABEL_WIDTH = 8
_MAX_GROUPS = 8
_MAX_FRAMES = 12
_MAX_MESSAGE_LINES = 12
_MAX_KNOWN_LINES = 8
_MAX_TEXT = 110


def report_lines(report: CrashReport, style: TerminalStyle) -> Iterator[Line]:
    """Yield the report, most important first."""
    cause = report.cause
    if cause is None:
        yield from _nothing(report)
    else:
        yield from _cause(report, cause, style)
        yield from _traceback(cause, report, style)
    yield from _groups(report, style)
    yield from _exits(report.last, style)
    yield from _explained(report.last, style)
    yield from _notes(report, style)


def _cause(report: CrashReport, cause: FirstCause, style: TerminalStyle) -> Iterator[Line]:
    for line in wrap(_capital(cause_sentence(cause)).rstrip(".") + ".", style.width):
        yield ((line, _STYLES[cause.confidence]),)
    if cause.where is not None:
        place = f"{short_path(cause.where.file, style)}:{cause.where.line}"
        if cause.where.function:
            yield ("It was raised in ", (cause.where.function, "own"), f", {place}.")
        else:  # a syntax error
            yield (f"It is in {place}.",)
    if report.last.victims:
        told = victims_sentence(report.last)
        yield from _labelled("victims", f"{report.last.victims}   {told}".rstrip(), style)
    yield from _labelled("sure", f"{cause.confidence}: {because_of(cause)}", style)
    yield from _labelled("fault", advice_of(cause), style)
    if report.progress:
        yield from _labelled("step", f"the last one that was reported: {report.progress}", style)
    if attempts := attempts_sentence(report):
        yield from _labelled("attempt", attempts, style)
    for index, step in enumerate(next_steps(report)):
        yield (*_label("next" if index == 0 else ""), (step, WHOLE))


def _nothing(report: CrashReport) -> Iterator[Line]:
    handled = [group for group in report.last.groups if group.handled]
    yield (("No failure was found.", "good"), f" {read_sentence(report)}.")
    if handled:
        yield (f"{plural(len(handled), 'exception')} {verb(len(handled), 'were')} printed by ranks that went on.",)
    if report.progress:
        yield from _labelled("step", f"the last one that was reported: {report.progress}", TerminalStyle())


def _traceback(cause: FirstCause, report: CrashReport, style: TerminalStyle) -> Iterator[Line]:
    raised = cause.raised
    if raised is None or not (raised.frames or "\n" in raised.message):
        if cause.line is not None and cause.known and not cause.raised:
            yield ()
            yield (("  line     ", "dim"), cause.line.text.strip()[:300])
        return
    copies = next((group.count for group in report.last.groups if group.raised == raised), len(cause.ranks))
    yield ()
    of = f" of {plural(copies, 'copy', 'copies')}" if copies > 1 else ""
    yield ((f"  traceback{of}", "dim"), (f"   {cause.line.source}" if cause.line is not None else "", "dim"))
    yield from traceback_lines(raised, style)


def traceback_lines(raised: Raised, style: TerminalStyle) -> Iterator[Line]:
    """Yield the frames of an exception, those of the user's code marked, and its whole message."""
    frames = raised.frames
    shown = frames if style.full or len(frames) <= _MAX_FRAMES else (*frames[:2], *frames[-(_MAX_FRAMES - 2) :])
    for index, frame in enumerate(shown):
        if index == 2 and len(shown) < len(frames):
            yield (("    … ", "dim"), (f"{len(frames) - len(shown)} more with --full", "dim"))
        name: Piece = (frame.function, "own") if is_own(frame.file) else frame.function
        yield ("    ", f"{short_path(frame.file, style)}:{frame.line} in ", name)
    lines = f"{raised.type}: {raised.message}".split("\n") if raised.message else [raised.type]
    for line in lines if style.full else lines[:_MAX_MESSAGE_LINES]:
        yield ("    ", (line, "bad"))
    if len(lines) > _MAX_MESSAGE_LINES and not style.full:
        yield (("    … ", "dim"), (f"{len(lines) - _MAX_MESSAGE_LINES} more lines with --full", "dim"))


def _groups(report: CrashReport, style: TerminalStyle) -> Iterator[Line]:
    """Yield the other exceptions, one row each."""
    cause = report.cause
    others = [
        group
        for group in report.last.groups
        if (cause is None or not _is_cause(group, cause)) and (group.role != TEARDOWN or style.full)
    ]
    if not others:
        return
    yield ()
    yield ((f"  {'other exceptions' if cause is not None else 'exceptions'}", "dim"),)
    others.sort(key=lambda group: -group.count)
    rows: list[list[Piece]] = []
    for group in others if style.full else others[:_MAX_GROUPS]:
        rows.append(
            [
                (_who(group.ranks), "rank"),
                f"{group.count}×",
                exception_text(group.raised, _MAX_TEXT),
                (_role(group), "dim"),
            ]
        )
    yield from columns(rows, indent="    ", right=(1,), width=style.width)
    if len(others) > len(rows) or report.last.more:
        yield (f"    and {len(others) - len(rows) + report.last.more} more with --full",)


def _is_cause(group: ReportGroup, cause: FirstCause) -> bool:
    return cause.line is not None and group.line == cause.line


def _role(group: ReportGroup) -> str:
    if group.handled:
        return "handled: the rank went on"
    if group.thread:
        return f"in thread {group.thread}"
    if group.known and row_of(group.known).kind == TIMEOUT:
        return "waited for another rank"
    return {"cascade": "follows from another failure", "teardown": "the launcher ended it", "note": ""}.get(
        group.role, "of its own"
    )


def _exits(attempt: AttemptReport, style: TerminalStyle) -> Iterator[Line]:
    if not attempt.exits:
        return
    yield ()
    yield (("  how processes ended", "dim"),)
    rows: list[list[Piece]] = [
        [(_who(row.ranks), "rank"), f"{exit_words(row)}{_named_first(row.launcher_first, attempt, row.ranks)}"]
        for row in attempt.exits
    ]
    yield from columns(rows[: 40 if not style.full else None], indent="    ", width=style.width)


def _named_first(first: bool, attempt: AttemptReport, ranks: RankSet) -> str:
    """Return a remark where the launcher names another rank as the first to fail."""
    cause = attempt.cause
    if not first or cause is None or not cause.ranks or not ranks or ranks & cause.ranks:
        return ""
    return "   (the launcher observed this failure first; it is not the cause)"


def _explained(attempt: AttemptReport, style: TerminalStyle) -> Iterator[Line]:
    """Yield what known lines mean and what to try."""
    rows = [row for row in attempt.lines if row.role != NOTE or style.full]
    if not rows:
        return
    yield ()
    yield (("  lines explained", "dim"),)
    for row in rows if style.full else rows[:_MAX_KNOWN_LINES]:
        known = row_of(row.key)
        yield ("    ", (_who(row.ranks), "rank"), f" {row.count}×  ", row.line.text.strip()[:160])
        for text in wrap(f"{known.meaning} {known.advice}".strip(), style.width - 10 if style.width > 40 else 0):
            yield ("          ", text)


def _notes(report: CrashReport, style: TerminalStyle) -> Iterator[Line]:
    notes = [*report.problems]
    if report.earlier_runs:
        notes.append(f"the log has {plural(report.earlier_runs, 'earlier run')}, which is not part of this report")
    if report.older:
        notes.append(f"{plural(len(report.older), 'older run')} in the same folder was left out: {report.older[-1]}")
    if notes:
        yield ()
    for note in notes:
        yield (("  note     ", "dim"), note)


def _label(word: str) -> tuple[Piece, ...]:
    return ("  ", (f"{word:<{_LABEL_WIDTH}}", "dim"), " ")


def _labelled(word: str, text: str, style: TerminalStyle) -> Iterator[Line]:
    room = style.width - _LABEL_WIDTH - 3 if style.width > _LABEL_WIDTH + 20 else 0
    for index, line in enumerate(wrap(text, room)):
        yield (*_label(word if index == 0 else ""), line)


def _who(ranks: RankSet) -> str:
    return str(ranks) if ranks else "?"


def _capital(text: str) -> str:
    """Return a sentence with a capital letter, unless it begins with the name of a function."""
    return text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text
