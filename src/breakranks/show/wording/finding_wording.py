"""A finding in words: its sentence, its evidence, why it is as sure as it is, what to do next; and a class of ranks."""

from __future__ import annotations

from breakranks.explain.causes.collective_causes import NotEntered, NotTransferred
from breakranks.explain.diagnosis import Finding, RankClass
from breakranks.rankset import RankSet
from breakranks.show.quantities import duration
from breakranks.show.wording import (
    collective_wording,
    file_wording,
    helper_wording,
    host_wording,
    outside_wording,
    process_wording,
    thread_wording,
)
from breakranks.show.wording.action_wording import action_text
from breakranks.show.wording.ground_wording import grounds_text
from breakranks.show.wording.registry import cause_text, fact_text
from breakranks.show.wording.value_wording import activity, call, doing_for, held_up, place, wait_place

# Each registers the words for its causes and facts.
AREAS = (
    collective_wording,
    file_wording,
    helper_wording,
    host_wording,
    outside_wording,
    process_wording,
    thread_wording,
)
_STATES = {"T": "stopped", "t": "stopped by a debugger", "Z": "dead (zombie)", "X": "gone"}


def sentence(finding: Finding) -> str:
    """What is the matter, and who waits for it."""
    text = cause_text(finding.cause, finding.subject)
    if finding.held_up is None:
        return text
    return f"{text}; {held_up(finding.held_up, len(RankSet.parse(finding.culprits)))}"


def second_sentence(finding: Finding) -> str:
    """Where the culprit is instead, or was last; empty where there is no more to say."""
    cause = finding.cause
    if isinstance(cause, NotEntered | NotTransferred) and cause.last is not None:
        return collective_wording.last_call(cause.last, finding.subject.count)
    if isinstance(cause, NotEntered) and cause.doing is not None:
        first = "It is" if finding.subject.count == 1 else "One of them is"
        return f"{first} in {place(cause.doing.where)}, {doing_for(cause.doing)}"
    return ""


def summary(finding: Finding) -> str:
    """All of it on one line, without a full stop at its end."""
    more = second_sentence(finding)
    return f"{sentence(finding)}. {more}" if more else sentence(finding)


def evidence_lines(finding: Finding) -> list[str]:
    return [fact_text(fact) for fact in finding.evidence]


def next_lines(finding: Finding) -> list[str]:
    return [action_text(action) for action in finding.next]


def because(finding: Finding) -> str:
    return grounds_text(finding.grounds, finding.grounds_seconds)


def victims_place(finding: Finding) -> str:
    return wait_place(finding.victims_at) if finding.victims_at is not None else ""


def label(one: RankClass) -> str:
    """What ranks of a class do, in one phrase."""
    if one.state and one.state in _STATES:
        return _STATES[one.state]
    if one.last:
        return "in no call" + (f"; its last was {call(one.call)}" if one.call is not None else "")
    if one.doing.word == "sleep" and one.doing.left is not None:
        return f"sleeping, {duration(one.doing.left)} left"
    return f"in {call(one.call)}" if one.call is not None else activity(one.doing)
