"""Which exceptions of a mixed log were raised from which: the lines that join two do not tell whose they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from breakranks.logs.log_events import Raised
from breakranks.logs.traceback_lines import CHAIN_LINES
from breakranks.logs.traceback_tokens import CHAIN, EXCEPTION, FRAME, GROUP, GROUP_HEADER, PLAIN_HEADER, Token

SAME_FUNCTION = 2.0  # the cause begins in a function that the other traceback passes
SAME_COUNT = 1.0
MAX_PARTS = 300  # different exceptions that are tried with each other
BETWEEN = 0.1  # another kind of exception is printed between the two


class Part(NamedTuple):
    """One kind of exception with its frames, its number of copies, and its first and last line in the file."""

    raised: Raised
    copies: int
    begin: str
    end: str


class Whole(NamedTuple):
    """A traceback with its causes. ``parts`` are the indexes of the parts that it is made of, the last one first."""

    raised: Raised
    copies: int
    parts: tuple[int, ...]


class _Link(NamedTuple):
    score: float
    cause: int
    effect: int
    relation: str


def linked(parts: Sequence[Part], tokens: Sequence[Token]) -> list[Whole]:
    """The tracebacks that the parts make."""
    links = _links(parts, tokens)
    wholes: dict[int, list[Whole]] = {}
    for index in _causes_first(len(parts), links):
        wholes[index] = _joined(index, parts[index], links.get(index, []), wholes)
    return [whole for index in range(len(parts)) for whole in wholes[index] if whole.copies > 0]


def _joined(index: int, part: Part, links: list[tuple[int, int, str]], wholes: dict[int, list[Whole]]) -> list[Whole]:
    """The copies of a part, each with a cause of those that are available, which are taken away there."""
    found: list[Whole] = []
    left = part.copies
    for cause, wanted, relation in links:
        for at, whole in enumerate(wholes[cause]):
            count = min(wanted, whole.copies, left)
            if count <= 0:
                continue
            wholes[cause][at] = whole._replace(copies=whole.copies - count)
            raised = replace(part.raised, cause=whole.raised, relation=relation)
            found.append(Whole(raised, count, (index, *whole.parts)))
            wanted -= count
            left -= count
    return [*found, Whole(part.raised, left, (index,))] if left else found


def _links(parts: Sequence[Part], tokens: Sequence[Token]) -> dict[int, list[tuple[int, int, str]]]:
    """For each part the causes: index, number of copies, relation."""
    left = Counter(CHAIN_LINES[token.text] for token in tokens if token.kind == CHAIN)
    links: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    if not left:
        return links
    as_cause, as_effect = [part.copies for part in parts], [part.copies for part in parts]
    for link in sorted(_candidates(parts, tokens), reverse=True):
        count = min(as_cause[link.cause], as_effect[link.effect], left[link.relation])
        if count <= 0 or _reaches(links, link.cause, link.effect):
            continue
        links[link.effect].append((link.cause, count, link.relation))
        as_cause[link.cause] -= count
        as_effect[link.effect] -= count
        left[link.relation] -= count
    return links


def _causes_first(size: int, links: dict[int, list[tuple[int, int, str]]]) -> list[int]:
    """The parts, each behind its causes."""
    found: list[int] = []
    waiting = [(index, False) for index in reversed(range(size))]
    seen: set[int] = set()
    while waiting:
        index, done = waiting.pop()
        if done:
            found.append(index)
        elif index not in seen:
            seen.add(index)
            waiting.append((index, True))
            waiting += [(cause, False) for cause, _copies, _relation in links.get(index, ())]
    return found


def _reaches(links: dict[int, list[tuple[int, int, str]]], start: int, goal: int) -> bool:
    seen, waiting = set(), [start]
    while waiting:
        at = waiting.pop()
        if at == goal:
            return True
        if at not in seen:
            seen.add(at)
            waiting += [cause for cause, _count, _relation in links.get(at, ())]
    return False


def _candidates(parts: Sequence[Part], tokens: Sequence[Token]) -> list[_Link]:
    """All pairs that the order of lines allows, with what speaks for each."""
    ends, begins, relations = _neighbours(tokens)
    first, last = _positions(tokens)
    order = sorted(range(len(parts)), key=lambda index: first.get(parts[index].end, 0))
    place = {index: at for at, index in enumerate(order)}
    found: list[_Link] = []
    for relation, (first_join, last_join) in relations.items():
        total = sum(ends[relation].values()) or 1
        causes = [
            c for c in range(len(parts)) if parts[c].raised.complete and first.get(parts[c].end, 1e18) < last_join
        ]
        effects = [e for e in range(len(parts)) if last.get(parts[e].end or parts[e].begin, -1) > first_join]
        for cause in causes[:MAX_PARTS]:
            for effect in effects[:MAX_PARTS]:
                if cause == effect or place[cause] > place[effect]:
                    continue
                score = ends[relation][parts[cause].end] / total + begins[relation][parts[effect].begin] / total
                score += SAME_FUNCTION * _passes(parts[effect].raised, parts[cause].raised)
                score += SAME_COUNT * (parts[cause].copies == parts[effect].copies)
                score -= BETWEEN * (place[effect] - place[cause] - 1)
                found.append(_Link(score, cause, effect, relation))
    return found


def _passes(effect: Raised, cause: Raised) -> bool:
    if not cause.frames:
        return False
    start = cause.frames[0]
    return any(frame.function == start.function and frame.file == start.file for frame in effect.frames)


def _neighbours(
    tokens: Sequence[Token],
) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]], dict[str, tuple[int, int]]]:
    """The ends before and the beginnings after the lines that join, and the first and the last place of these."""
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    begins: dict[str, Counter[str]] = defaultdict(Counter)
    relations: dict[str, tuple[int, int]] = {}
    last_end, waiting = "", ""
    for at, token in enumerate(tokens):
        if token.kind in (EXCEPTION, GROUP):
            last_end = token.text
        if token.kind == CHAIN:
            waiting = CHAIN_LINES[token.text]
            ends[waiting][last_end] += 1
            relations[waiting] = (relations.get(waiting, (at, at))[0], at)
        elif token.kind in (FRAME, GROUP) and waiting:
            begins[waiting][token.text] += 1
            waiting = ""
        elif token.kind not in (PLAIN_HEADER, GROUP_HEADER):
            waiting = waiting if token.kind != EXCEPTION else ""
    return ends, begins, relations


def _positions(tokens: Sequence[Token]) -> tuple[dict[str, int], dict[str, int]]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, token in enumerate(tokens):
        first.setdefault(token.text, at)
        last[token.text] = at
    return first, last
