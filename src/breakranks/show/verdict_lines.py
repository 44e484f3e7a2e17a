"""What ``breakranks why`` prints: the verdict as a sentence, its proof, and the next command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from breakranks.explain.diagnosis import Diagnosis, Finding, RankClass
from breakranks.explain.finding_parts import Where
from breakranks.rankset import RankSet
from breakranks.show.lost_host_lines import lost_lines
from breakranks.show.quantities import duration, plural
from breakranks.show.stack_tree import (
    function_name,
    header,
    missing_lines,
    place,
    problem_lines,
    set_text,
    stackless_lines,
)
from breakranks.show.terminal_text import (
    WHOLE,
    Line,
    Piece,
    TerminalStyle,
    columns,
    short_path,
    state_style,
    state_word,
    wrap,
)
from breakranks.show.wording.finding_wording import (
    because,
    evidence_lines,
    label,
    names_place,
    next_lines,
    one_of,
    second_sentence,
    sentence,
    summary,
    victims_place,
)
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.model import Snapshot

_STYLES = {"certain": "verdict", "likely": "verdict", "guess": "warn"}
_CONFIDENCE = {
    "certain": "nothing else explains what was seen",
    "likely": "the evidence points to this and does not exclude another cause",
    "guess": "there is little evidence; check before you act",
}
_OTHERS_SHOWN = 5
_LABEL_WIDTH = 8  # the width of "victims" and a space


def why_lines(snapshot: Snapshot, diagnosis: Diagnosis, style: TerminalStyle) -> Iterator[Line]:
    """Yield everything that ``why`` prints, most important first."""
    yield header(snapshot, style)
    yield ()
    verdict = diagnosis.verdict
    if verdict is not None:
        yield from verdict_lines(verdict, diagnosis, style)
    else:
        yield from _nothing_recorded(snapshot, diagnosis) if snapshot.of_dumps else _nothing(diagnosis)
    yield from _others(diagnosis, style)
    yield ()
    yield from class_lines(diagnosis, style, still=snapshot.of_dumps)
    for lines in (
        stackless_lines(snapshot, style),
        missing_lines(snapshot, style),
        lost_lines(snapshot.hosts),
        problem_lines(snapshot.problems, style),
    ):
        for line in lines:
            yield ("  ", *line)


def verdict_lines(finding: Finding, diagnosis: Diagnosis, style: TerminalStyle) -> Iterator[Line]:
    """Yield one finding in full: the sentence, its place, the victims, the proof, the confidence, the next commands."""
    text, more = sentence(finding), second_sentence(finding)
    for line in wrap(f"{text}." if more else text, style.width):
        yield ((line, _STYLES.get(finding.confidence, "verdict")),)
    for line in wrap(f"{more}.", style.width) if more else ():
        yield (line,)
    if finding.where is not None and not names_place(finding):
        yield (f"{one_of(finding)} in ", (finding.where.function, "own"), f", {_at(finding.where, style)}.")
    if finding.victims:
        waiting = victims_place(finding) or _where_they_wait(finding, diagnosis, style)
        ranks = set_text(RankSet.parse(finding.victims), style)
        yield (*_label("victims"), (ranks, "rank"), f"   {waiting}")
    for index, fact in enumerate(evidence_lines(finding)):
        yield from _labelled("proof" if index == 0 else "", fact, style)
    why = because(finding) or _CONFIDENCE.get(finding.confidence, "")
    yield from _labelled("sure", f"{finding.confidence}: {why}" if why else finding.confidence, style)
    for index, command in enumerate(next_lines(finding)):
        yield (*_label("next" if index == 0 else ""), (command, WHOLE))


def _at(where: Where, style: TerminalStyle) -> str:
    file = short_path(where.file, style)
    return f"{file}:{where.line}" if where.line else file


def _label(word: str) -> tuple[Piece, ...]:
    return ("  ", (f"{word:<{_LABEL_WIDTH}}", "dim"), " ")


def _labelled(word: str, text: str, style: TerminalStyle) -> Iterator[Line]:
    room = style.width - _LABEL_WIDTH - 3 if style.width > _LABEL_WIDTH + 20 else 0
    for index, line in enumerate(wrap(text, room)):
        yield (*_label(word if index == 0 else ""), line)


def _where_they_wait(finding: Finding, diagnosis: Diagnosis, style: TerminalStyle) -> str:
    """Return what most of the victims are in: ``all_reduce   train.py:120 in step``."""
    victims = RankSet.parse(finding.victims)
    shared = [(len(RankSet.parse(rank_class.ranks) & victims), rank_class) for rank_class in diagnosis.classes]
    number, best = max(shared, key=lambda pair: pair[0], default=(0, None))
    return f"{label(best)}   {where_text(best, style)}" if best is not None and number else ""


def where_text(rank_class: RankClass, style: TerminalStyle) -> str:
    """Return ``train.py:120 in step``: where a class is in the user's own code."""
    if rank_class.where is not None:
        return f"{_at(rank_class.where, style)} in {rank_class.where.function}"
    own = innermost_own(rank_class.frames)
    return f"{place(own, style)} in {function_name(own, style)}" if own is not None else ""


def _nothing(diagnosis: Diagnosis) -> Iterator[Line]:
    moving = _members(rank_class for rank_class in diagnosis.classes if rank_class.moving)
    everyone = _members(diagnosis.classes)
    if any(not finding.informational for finding in diagnosis.findings):
        yield (("No verdict: none of the findings explains the state of the job.", "bold"),)
    elif moving:
        yield (
            ("No problem was found.", "good"),
            f" {len(moving):,} of {plural(len(everyone), 'rank')} moved between samples.",
        )
    else:
        yield (("No verdict: the evidence does not show why the job is blocked.", "bold"),)
    if not diagnosis.settled:
        yield ("A longer inspection (--patience 60) may show more.",)


def _nothing_recorded(snapshot: Snapshot, diagnosis: Diagnosis) -> Iterator[Line]:
    """Yield the result for dumps without a verdict. A dump is one moment: it does not show whether a job moves."""
    recorders = [rank.recorder for rank in snapshot.ranks if rank.recorder is not None]
    if not any(recorder.transfers or any(track.pending for track in recorder.tracks) for recorder in recorders):
        yield (("Nothing is pending: every recorded call has completed.", "good"),)
    elif any(not finding.informational for finding in diagnosis.findings):
        yield (("No verdict: none of the findings explains the state of the job.", "bold"),)
    elif any(finding.kind != "collective-stalled" for finding in diagnosis.findings):
        yield (("No verdict: the dumps were written right after the calls, so the job may have been healthy.", "bold"),)
    else:
        yield (("No rank is missing from a pending call.", "bold"),)


def _members(classes: Iterable[RankClass]) -> RankSet:
    found = RankSet()
    for rank_class in classes:
        found |= RankSet.parse(rank_class.ranks)
    return found


def _others(diagnosis: Diagnosis, style: TerminalStyle) -> Iterator[Line]:
    """Yield the other findings, one sentence each."""
    others = [finding for finding in diagnosis.findings if finding != diagnosis.verdict]
    if not others:
        return
    yield ()
    shown = others if style.full else others[:_OTHERS_SHOWN]
    for index, finding in enumerate(shown):
        yield from _labelled("also" if index == 0 else "", f"{summary(finding)} ({finding.confidence})", style)
    if len(others) > len(shown):
        yield (*_label(""), f"and {len(others) - len(shown)} more with --full")


def class_lines(diagnosis: Diagnosis, style: TerminalStyle, *, still: bool = False) -> list[Line]:
    """Return one row per class: ranks, state, motion, what it does, where. ``still``: state and motion are not
    known."""
    rows: list[list[Piece]] = [[(name, "dim") for name in ("ranks", "", "state", "", "doing", "where")]]
    for rank_class in diagnosis.classes:
        ranks = RankSet.parse(rank_class.ranks)
        rows.append(
            [
                (set_text(ranks, style), "rank"),
                (f"({len(ranks):,})", "dim"),
                (
                    state_word(rank_class.state) if len(rank_class.state) == 1 else rank_class.state,
                    state_style(rank_class.state),
                ),
                motion(rank_class),
                label(rank_class),
                where_text(rank_class, style),
            ]
        )
    if still:
        rows = [[*row[:2], *row[4:]] for row in rows]
    return columns(rows, width=style.width) if len(rows) > 1 else []


def motion(rank_class: RankClass) -> Piece:
    """Return ``moving``, or for how long it has not moved."""
    if rank_class.moving:
        return ("moving", "good")
    return ("unchanged" if rank_class.idle is None else f"unchanged {duration(rank_class.idle)}", "warn")
