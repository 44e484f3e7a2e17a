"""The texts of a finding: its sentence, its evidence, its grounds, the next steps; and the text of a class of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from breakranks.explain.causes.collective_causes import NotEntered, NotTransferred
from breakranks.explain.diagnosis import Finding, RankClass
from breakranks.explain.finding_parts import Where
from breakranks.rankset import RankSet
from breakranks.show.quantities import duration
from breakranks.show.wording import (
    collective_wording,
    external_wording,
    file_wording,
    helper_wording,
    host_wording,
    process_wording,
    thread_wording,
)
from breakranks.show.wording.action_wording import action_text
from breakranks.show.wording.ground_wording import grounds_text
from breakranks.show.wording.value_wording import activity, call, doing_for, held_up, place, wait_place
from breakranks.show.wording.wording_registry import cause_text, fact_text

# Importing them registers the texts of their causes and facts.
AREAS = (
    collective_wording,
    file_wording,
    helper_wording,
    host_wording,
    external_wording,
    process_wording,
    thread_wording,
)
_STATES = {"T": "stopped", "t": "stopped by a debugger", "Z": "dead (zombie)", "X": "gone"}


def sentence(finding: Finding) -> str:
    """Return what is wrong, and which ranks wait."""
    text = cause_text(finding.cause, finding.subject)
    if finding.held_up is None:
        return text
    return f"{text}; {held_up(finding.held_up, len(RankSet.parse(finding.culprits)))}"


def second_sentence(finding: Finding) -> str:
    """Return where the culprit is or was last; empty if there is nothing to add."""
    cause = finding.cause
    if isinstance(cause, NotEntered | NotTransferred) and cause.last is not None:
        return collective_wording.last_call(cause.last, finding.subject.count)
    if isinstance(cause, NotEntered) and cause.doing is not None and cause.doing.word == "unknown":
        return f"{'The stack of one of them' if finding.subject.count > 1 else 'Its stack'} could not be read"
    if isinstance(cause, NotEntered) and cause.doing is not None:
        return f"{one_of(finding)} in {place(cause.doing.where)}, {doing_for(cause.doing)}"
    return ""


def one_of(finding: Finding) -> str:
    """Return the beginning of a sentence about the culprit, or about one of the culprits."""
    return "One of them is" if finding.subject.count > 1 else "It is"


def summary(finding: Finding) -> str:
    """Return the sentences on one line, without a full stop at the end."""
    more = second_sentence(finding)
    return f"{sentence(finding)}. {more}" if more else sentence(finding)


def names_place(finding: Finding) -> bool:
    """Whether the sentences already contain the place ``where``."""
    where = finding.where
    return where is not None and any(
        (place.file, place.line) == (where.file, where.line) for place in _places((finding.cause, finding.held_up))
    )


def _places(value: object) -> Iterator[Where]:
    """Yield every place in a cause, at any depth."""
    if isinstance(value, Where):
        yield value
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from _places(getattr(value, name))
    elif isinstance(value, tuple):
        for part in value:
            yield from _places(part)


def evidence_lines(finding: Finding) -> list[str]:
    return [fact_text(fact) for fact in finding.evidence]


def next_lines(finding: Finding) -> list[str]:
    return [action_text(action) for action in finding.next]


def because(finding: Finding) -> str:
    return grounds_text(finding.grounds, finding.grounds_seconds)


def victims_place(finding: Finding) -> str:
    return wait_place(finding.victims_at) if finding.victims_at is not None else ""


def label(rank_class: RankClass) -> str:
    """Return what the ranks of a class do, in one phrase."""
    if rank_class.state and rank_class.state in _STATES:
        return _STATES[rank_class.state]
    if rank_class.last:
        return "in no call" + (f"; its last was {call(rank_class.call)}" if rank_class.call is not None else "")
    if rank_class.doing.word == "sleep" and rank_class.doing.left is not None:
        return f"sleeping, {duration(rank_class.doing.left)} left"
    return f"in {call(rank_class.call)}" if rank_class.call is not None else activity(rank_class.doing)
