"""The verdict as ``breakranks why`` prints it: a sentence, its proof, and the next command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from breakranks.explain.diagnosis import Diagnosis, Finding, RankClass
from breakranks.explain.values import Where
from breakranks.rankset import RankSet
from breakranks.show.lost_hosts import lost_lines
from breakranks.show.quantities import duration, plural
from breakranks.show.stack_tree import (
    function_name,
    header,
    missing_lines,
    of_dumps,
    place,
    problem_lines,
    set_text,
    stackless_lines,
)
from breakranks.show.terminal_text import Line, Piece, TerminalStyle, columns, short_path, state_style, state_word, wrap
from breakranks.show.wording.finding_wording import (
    because,
    evidence_lines,
    label,
    next_lines,
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
    "likely": "the evidence points here, and does not exclude another cause",
    "guess": "little was seen; look before you act",
}
_OTHERS_SHOWN = 5
_LABEL = 8  # the width of "victims" and a space


def why_lines(snapshot: Snapshot, diagnosis: Diagnosis, look: TerminalStyle) -> Iterator[Line]:
    """Everything ``why`` says, most important first."""
    yield header(snapshot, look)
    yield ()
    verdict = diagnosis.verdict
    if verdict is not None:
        yield from verdict_lines(verdict, diagnosis, look)
    else:
        yield from _nothing_recorded(snapshot, diagnosis) if of_dumps(snapshot) else _nothing(diagnosis)
    yield from _others(diagnosis, look)
    yield ()
    yield from class_lines(diagnosis, look, still=of_dumps(snapshot))
    for lines in (
        stackless_lines(snapshot, look),
        missing_lines(snapshot, look),
        lost_lines(snapshot.hosts),
        problem_lines(snapshot.problems, look),
    ):
        for line in lines:
            yield ("  ", *line)


def verdict_lines(finding: Finding, diagnosis: Diagnosis, look: TerminalStyle) -> Iterator[Line]:
    """One finding whole: the sentence, where it is, who waits, the proof, how sure, what next."""
    text, more = sentence(finding), second_sentence(finding)
    for line in wrap(f"{text}." if more else text, look.width):
        yield ((line, _STYLES.get(finding.confidence, "verdict")),)
    for line in wrap(more, look.width) if more else ():
        yield (line,)
    if finding.where is not None and f":{finding.where.line}" not in f"{text} {more}":
        yield ("It is in ", (finding.where.function, "own"), f", {_at(finding.where, look)}.")
    if finding.victims:
        waiting = victims_place(finding) or _where_they_wait(finding, diagnosis, look)
        ranks = set_text(RankSet.parse(finding.victims), look)
        yield (*_label("victims"), (ranks, "rank"), f"   {waiting}")
    for index, fact in enumerate(evidence_lines(finding)):
        yield from _labelled("proof" if index == 0 else "", fact, look)
    why = because(finding) or _CONFIDENCE.get(finding.confidence, "")
    yield from _labelled("sure", f"{finding.confidence}: {why}" if why else finding.confidence, look)
    for index, command in enumerate(next_lines(finding)):
        yield (*_label("next" if index == 0 else ""), (command, "bold"))


def _at(where: Where, look: TerminalStyle) -> str:
    file = short_path(where.file, look)
    return f"{file}:{where.line}" if where.line else file


def _label(word: str) -> tuple[Piece, ...]:
    return ("  ", (f"{word:<{_LABEL}}", "dim"), " ")


def _labelled(word: str, text: str, look: TerminalStyle) -> Iterator[Line]:
    room = look.width - _LABEL - 3 if look.width > _LABEL + 20 else 0
    for index, line in enumerate(wrap(text, room)):
        yield (*_label(word if index == 0 else ""), line)


def _where_they_wait(finding: Finding, diagnosis: Diagnosis, look: TerminalStyle) -> str:
    """What most of the victims are in: ``all_reduce   train.py:120 in step``."""
    victims = RankSet.parse(finding.victims)
    shared = [(len(RankSet.parse(one.ranks) & victims), one) for one in diagnosis.classes]
    number, best = max(shared, key=lambda pair: pair[0], default=(0, None))
    return f"{label(best)}   {where_text(best, look)}" if best is not None and number else ""


def where_text(one: RankClass, look: TerminalStyle) -> str:
    """``train.py:120 in step``: where a class stands in the user's own code."""
    if one.where is not None:
        return f"{_at(one.where, look)} in {one.where.function}"
    own = innermost_own(one.frames)
    return f"{place(own, look)} in {function_name(own, look)}" if own is not None else ""


def _nothing(diagnosis: Diagnosis) -> Iterator[Line]:
    moving = _members(one for one in diagnosis.classes if one.moving)
    everyone = _members(diagnosis.classes)
    if any(not finding.informational for finding in diagnosis.findings):
        yield (("No verdict: nothing that was found explains the job.", "bold"),)
    elif moving:
        yield (
            ("Nothing is wrong that can be seen.", "good"),
            f" {len(moving):,} of {plural(len(everyone), 'rank')} moved between samples.",
        )
    else:
        yield (("No verdict: what was seen does not say why the job stands.", "bold"),)
    if not diagnosis.settled:
        yield ("A longer look (--patience 60) may show more.",)


def _nothing_recorded(snapshot: Snapshot, diagnosis: Diagnosis) -> Iterator[Line]:
    """A dump is one moment: it does not say that a job moves, only what it was in."""
    recorders = [rank.recorder for rank in snapshot.ranks if rank.recorder is not None]
    if not any(one.transfers or any(track.pending for track in one.tracks) for one in recorders):
        yield (("Nothing is pending: every recorded call has completed.", "good"),)
    elif any(not finding.informational for finding in diagnosis.findings):
        yield (("No verdict: nothing that was found explains the job.", "bold"),)
    elif any(finding.kind != "collective-stalled" for finding in diagnosis.findings):
        yield (("No verdict: the dumps are so young that the job may simply have run.", "bold"),)
    else:
        yield (("No rank is missing from a call that is pending.", "bold"),)


def _members(classes: Iterable[RankClass]) -> RankSet:
    found = RankSet()
    for one in classes:
        found |= RankSet.parse(one.ranks)
    return found


def _others(diagnosis: Diagnosis, look: TerminalStyle) -> Iterator[Line]:
    """The findings beside the verdict, a sentence each."""
    others = [finding for finding in diagnosis.findings if finding != diagnosis.verdict]
    if not others:
        return
    yield ()
    shown = others if look.full else others[:_OTHERS_SHOWN]
    for index, finding in enumerate(shown):
        yield from _labelled("also" if index == 0 else "", f"{summary(finding)} ({finding.confidence})", look)
    if len(others) > len(shown):
        yield (*_label(""), f"and {len(others) - len(shown)} more with --full")


def class_lines(diagnosis: Diagnosis, look: TerminalStyle, *, still: bool = False) -> list[Line]:
    """A row a class: who, what, where, state, moving or standing; ``still``: the last two are not known."""
    rows: list[list[Piece]] = [[(name, "dim") for name in ("ranks", "", "state", "", "doing", "where")]]
    for one in diagnosis.classes:
        ranks = RankSet.parse(one.ranks)
        rows.append(
            [
                (set_text(ranks, look), "rank"),
                (f"({len(ranks):,})", "dim"),
                (state_word(one.state) if len(one.state) == 1 else one.state, state_style(one.state)),
                motion(one),
                label(one),
                where_text(one, look),
            ]
        )
    if still:
        rows = [[*row[:2], *row[4:]] for row in rows]
    return columns(rows, width=look.width) if len(rows) > 1 else []


def motion(one: RankClass) -> Piece:
    """``moving``, or for how long it has stood."""
    if one.moving:
        return ("moving", "good")
    return ("standing" if one.idle is None else f"standing {duration(one.idle)}", "warn")
