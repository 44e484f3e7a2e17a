"""Which frames and exceptions belong together, where the lines of many tracebacks are mixed.

Copies that read the same so far wait at one node of a tree of lines, with their number. A line moves a copy along an
edge, or adds an edge. Of all ways to read the lines the one with the fewest edges is sought, by a beam search: a few
kinds of tracebacks, each with many copies, explain a log better than many kinds. How often each line is still to come
tells early where a new edge is needed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from breakranks.logs.traceback_lines import EXCEPTION as EXCEPTION_LINE
from breakranks.logs.traceback_lines import GROUP_END, frame_of
from breakranks.logs.traceback_tokens import EXCEPTION, FRAME, GROUP, GROUP_HEADER, PLAIN_HEADER, SOURCE, Hints, Token

PLAIN_ROOT, GROUP_ROOT = 0, 1
NEW_EDGE = 1.0
ROUNDING = 1e-6
JUMP = 0.02  # for the total of a reading, as is
NAMED = 0.4
NEW_BRANCH = 0.2  # more than a new edge at the end of a path
NO_FRAMES = 1.5  # an exception directly below a header
STRAY = 1.5  # a line of a logger that looks like an exception
CUT_OFF = 1.0  # a traceback without an end

MAX_OPTIONS = 6  # of new edges for one line
COST_RANGE = 3.0
# How many readings are kept, by the number of lines.
_WIDTHS = ((1500, 24), (4000, 12), (1 << 62, 1))
SEVERAL_WEIGHTS_TOKENS = 1500  # more are read with the first weights only
MAX_SIBLINGS = 8  # of which it is counted how many copies each will get: more differ in their messages
MAX_QUESTIONS = 60_000  # about copies that are still to come, where few readings are kept: two seconds
MIN_RUNS = 3  # of the same lines one behind the other, for a traceback that was not mixed with others'
_USED, _AT = 1, 2  # in signatures: numbers, whose hashes are the same in each run of Python


class _Weights(NamedTuple):
    """How much what is known of two lines counts, where one may follow the other."""

    named: float = 0.6  # the source of the first has the name of the second
    not_named: float = 0.0
    known_call: float = 0.2  # the two lines follow each other elsewhere
    source_missing: float = 0.0  # the source below the first is not in the file so far
    written_next: float = 0.3  # the two lines follow each other in the file
    elsewhere: float = 0.0  # the line moves another copy than the line before it in the file
    takes: float = 1.0  # a copy leaves a path although as many lines are to come as that path needs


# A beam that loses the right reading seldom does so with other weights too. The readings are compared at the end.
_WEIGHTS = (
    _Weights(elsewhere=0.1),
    _Weights(elsewhere=0.4, written_next=0.6),
    _Weights(known_call=0.5, not_named=0.3, source_missing=1.2),
    _Weights(named=0.9, not_named=0.6, known_call=0.3, elsewhere=0.2),
    _Weights(named=0.3, known_call=0.0, written_next=0.6),
    _Weights(source_missing=0.6, written_next=0.0, takes=0.5),
    _Weights(known_call=0.7, takes=2.0, source_missing=0.3, elsewhere=0.05),
    _Weights(named=0.9, not_named=0.9, source_missing=0.6, written_next=0.1),
    _Weights(named=0.1, known_call=0.6, written_next=0.8),
    _Weights(elsewhere=0.8, written_next=1.0, known_call=0.4),
)
AGREEING = 2  # readings with the same result: others are not tried


class TracebackSegment(NamedTuple):
    """The lines from a header to an exception, without the header, and how many copies there are."""

    texts: tuple[str, ...]
    copies: int
    group: bool
    complete: bool


class _Reading:
    """One way to read the lines so far."""

    __slots__ = ("beyond", "calls", "cost", "done", "jumps", "kids", "last", "sign", "used", "wait")

    def __init__(self) -> None:
        self.cost = 0.0
        self.wait: dict[int, int] = {}  # copies by the node that they have reached
        self.done: dict[int, int] = {}
        self.used: set[int] = set()
        self.kids: dict[int, int] = {}
        self.calls: set[tuple[str, str]] = set()  # pairs of lines that follow each other
        self.beyond: dict[str, int] = {}  # copies that have gone on from a frame, by the source below it
        self.jumps = 0  # lines that moved another copy than the line before them
        self.last = -1
        self.sign = 0

    def copy(self) -> _Reading:
        new = _Reading()
        new.cost, new.last, new.sign, new.jumps = self.cost, self.last, self.sign, self.jumps
        new.wait, new.done, new.kids, new.used = dict(self.wait), dict(self.done), dict(self.kids), set(self.used)
        new.calls, new.beyond = set(self.calls), dict(self.beyond)
        return new


class _Option(NamedTuple):
    cost: float
    parent: int  # -1: the line is no part of any traceback
    child: int


def segments_of(tokens: Sequence[Token], hints: Hints) -> list[TracebackSegment]:
    """The segments of the best reading that was found."""
    found: dict[tuple[TracebackSegment, ...], tuple[float, int]] = {}
    for weights in _WEIGHTS if len(tokens) < SEVERAL_WEIGHTS_TOKENS else _WEIGHTS[:1]:
        cost, segments = _SegmentSearch(tokens, hints, weights).best()
        key = tuple(sorted(segments))
        found[key] = (cost, found.get(key, (cost, 0))[1] + 1)
        if found[key] == (min(found.values())[0], AGREEING):
            break
    return list(min(found.items(), key=lambda item: item[1][0])[0])


class _SegmentSearch:
    """Reads headers, frames, exceptions and lines of groups, all of them known before."""

    def __init__(self, tokens: Sequence[Token], hints: Hints, weights: _Weights) -> None:
        self._weights = weights
        self._questions = 0
        kinds = (PLAIN_HEADER, GROUP_HEADER, FRAME, EXCEPTION, GROUP, SOURCE)
        self._tokens = [token for token in tokens if token.kind in kinds]
        self._hints = hints
        self._named: dict[tuple[str, str], bool] = {}
        self._left = Counter(token.text for token in self._tokens if token.kind in (FRAME, EXCEPTION, GROUP))
        self._headers_left = Counter(token.kind for token in self._tokens)
        self._printed: Counter[str] = Counter()  # sources so far
        self._sources = {text: source for text, source in hints.sources.items() if source in hints.certain}
        self._parents = [-1, -1]
        self._texts = ["", ""]
        self._terminal = [False, False]
        self._children: dict[tuple[int, str], int] = {}
        self._below: dict[int, list[int]] = defaultdict(list)
        self._by_text: dict[str, list[int]] = defaultdict(list)
        self._strays = self._headers_left[EXCEPTION] > self._headers_left[PLAIN_HEADER]
        self._width = next(width for size, width in _WIDTHS if len(self._tokens) < size)

    def best(self) -> tuple[float, list[TracebackSegment]]:
        """The cost of the best reading, by what counts for all weights, and its paths."""
        readings = [self._first_reading()]
        for token in self._tokens:
            if token.kind in (PLAIN_HEADER, GROUP_HEADER):
                self._start(readings, token.kind)
            elif token.kind == SOURCE:
                self._printed[token.text] += 1
            else:
                readings = self._read(readings, token)
        cost, best = min(((self._total(reading), reading) for reading in readings), key=lambda pair: pair[0])
        ends = Counter(best.done)
        ends.update(best.wait)
        return cost, [self._segment(node, count) for node, count in sorted(ends.items()) if count > 0]

    def _first_reading(self) -> _Reading:
        """Among many lines some tracebacks are not mixed with others: their paths are known before."""
        reading = _Reading()
        if len(self._tokens) >= SEVERAL_WEIGHTS_TOKENS:
            for run, times in _runs(self._tokens).items():
                if times >= MIN_RUNS:
                    self._add_path(reading, run)
        return reading

    def _add_path(self, reading: _Reading, run: Sequence[tuple[int, str]]) -> None:
        parent = PLAIN_ROOT
        for kind, text in run:
            child = self._node(parent, kind, text)
            if child not in reading.used:
                self._use(reading, parent, child)
            parent = child

    def _use(self, reading: _Reading, parent: int, child: int) -> None:
        reading.used.add(child)
        reading.kids[parent] = reading.kids.get(parent, 0) + 1
        reading.sign += hash((child, _USED))
        reading.calls.add((self._texts[parent], self._texts[child]))

    def _total(self, reading: _Reading) -> float:
        calls = sum(self._is_named(self._texts[self._parents[node]], self._texts[node]) for node in reading.used)
        branches = sum(count > 1 for count in reading.kids.values())
        return (
            len(reading.used)
            + NEW_BRANCH * branches
            + JUMP * reading.jumps
            - NAMED * calls
            + CUT_OFF * self._cut_off(reading)
        )

    def _cut_off(self, reading: _Reading) -> float:
        open_ones = [count for node, count in reading.wait.items() if not self._terminal[node]]
        return len(open_ones) + sum(open_ones) / 2

    def _segment(self, node: int, count: int) -> TracebackSegment:
        complete, texts = self._terminal[node], []
        while self._parents[node] >= 0:
            texts.append(self._texts[node])
            node = self._parents[node]
        return TracebackSegment(tuple(reversed(texts)), count, node == GROUP_ROOT, complete)

    def _start(self, readings: list[_Reading], kind: int) -> None:
        root = PLAIN_ROOT if kind == PLAIN_HEADER else GROUP_ROOT
        self._headers_left[kind] -= 1
        for reading in readings:
            reading.wait[root] = reading.wait.get(root, 0) + 1
            reading.last = root

    def _read(self, readings: list[_Reading], token: Token) -> list[_Reading]:
        found: list[_Reading] = []
        for reading in readings:
            options = self._options(reading, token)
            for option in options[1:]:
                new = reading.copy()
                self._move(new, option, token)
                found.append(new)
            if options:
                self._move(reading, options[0], token)
            found.append(reading)
        self._left[token.text] -= 1
        return found if len(found) == 1 else self._best(found)

    def _best(self, readings: list[_Reading]) -> list[_Reading]:
        readings.sort(key=lambda reading: reading.cost)
        limit = readings[0].cost + COST_RANGE
        seen: set[tuple[int, int]] = set()
        kept: list[_Reading] = []
        for reading in readings:
            if reading.cost > limit or len(kept) == self._width:
                break
            key = (reading.sign, reading.last)
            if key not in seen:
                seen.add(key)
                kept.append(reading)
        return kept

    def _move(self, reading: _Reading, option: _Option, token: Token) -> None:
        reading.cost += option.cost
        if option.parent < 0:
            return
        parent, child = option.parent, option.child
        if parent != reading.last and not self._terminal[reading.last]:
            reading.jumps += 1
        if child < 0:
            child = self._node(parent, token.kind, token.text)
        if child not in reading.used:
            self._use(reading, parent, child)
        source = self._sources.get(self._texts[parent])
        if source is not None:
            reading.beyond[source] = reading.beyond.get(source, 0) + 1
        left = reading.wait[parent] - 1
        if left:
            reading.wait[parent] = left
        else:
            del reading.wait[parent]
        place = reading.done if token.kind == EXCEPTION else reading.wait
        place[child] = place.get(child, 0) + 1
        reading.sign += hash((child, _AT)) - hash((parent, _AT))
        reading.last = child

    def _node(self, parent: int, kind: int, text: str) -> int:
        key = (parent, text)
        node = self._children.get(key)
        if node is None:
            node = self._children[key] = len(self._parents)
            self._parents.append(parent)
            self._texts.append(text)
            self._terminal.append(kind == EXCEPTION or GROUP_END.match(text) is not None)
            self._below[parent].append(node)
            self._by_text[text].append(node)
        return node

    def _options(self, reading: _Reading, token: Token) -> list[_Option]:
        return self._only_option(reading, token) if self._width == 1 else self._all_options(reading, token)

    def _only_option(self, reading: _Reading, token: Token) -> list[_Option]:
        """Of very many lines each goes where one like it went before, if a copy is there."""
        parents, wait = self._parents, reading.wait
        best = -1
        for node in self._by_text.get(token.text, ()):
            parent = parents[node]
            if parent in wait and (best < 0 or parent == reading.last):
                best = node
        if best >= 0:
            return [_Option(0.0, parents[best], best)]
        return self._new_edges(reading, token)[:1]

    def _all_options(self, reading: _Reading, token: Token) -> list[_Option]:
        known: list[_Option] = []
        wanted = ROUNDING
        for node in self._by_text.get(token.text, ()):
            if node in reading.used:
                wanted += self._upstream(reading, node)
                if self._parents[node] in reading.wait:
                    known.append(_Option(self._early(reading, self._parents[node]), self._parents[node], node))
        missing = self._weights.source_missing
        late = missing > 0 and all(option.cost >= missing for option in known)
        if known and self._left[token.text] <= wanted and not late:
            return known
        options = known + self._new_edges(reading, token)
        if not known and token.kind == EXCEPTION and self._strays:
            options.append(_Option(STRAY, -1, -1))
        return options

    def _early(self, reading: _Reading, node: int) -> float:
        """What speaks against a copy going on from a node: the source below that frame is still to come."""
        source = self._sources.get(self._texts[node])
        late = source is not None and reading.beyond.get(source, 0) >= self._printed[source]
        jump = self._weights.elsewhere if node != reading.last and not self._terminal[reading.last] else 0.0
        return jump + (self._weights.source_missing if late else 0.0)

    def _upstream(self, reading: _Reading, node: int) -> float:
        """How many copies can be expected to come to a node. Where paths part, as the lines that are left tell."""
        self._questions += 1
        copies, share = 0.0, 1.0
        while node > GROUP_ROOT:
            parent = self._parents[node]
            if reading.kids[parent] > 1:
                share *= self._share(reading, parent, node)
            copies += share * reading.wait.get(parent, 0)
            node = parent
        return copies + share * self._headers_left[PLAIN_HEADER if node == PLAIN_ROOT else GROUP_HEADER]

    def _share(self, reading: _Reading, parent: int, node: int) -> float:
        if reading.kids[parent] > MAX_SIBLINGS:
            return 1.0 / reading.kids[parent]
        left = sum(self._left[self._texts[child]] for child in self._below[parent] if child in reading.used)
        return self._left[self._texts[node]] / left if left else 0.0

    def _new_edges(self, reading: _Reading, token: Token) -> list[_Option]:
        options = [
            _Option(self._cost(reading, node, token), node, -1)
            for node in reading.wait
            if self._fits(node, token) and self._children.get((node, token.text)) not in reading.used
        ]
        options.sort()
        return options[:MAX_OPTIONS]

    def _fits(self, node: int, token: Token) -> bool:
        root = node
        while root > GROUP_ROOT:
            root = self._parents[root]
        return (root == GROUP_ROOT) == (token.kind == GROUP)

    def _cost(self, reading: _Reading, node: int, token: Token) -> float:
        cost = NEW_EDGE + self._early(reading, node)
        if (self._texts[node], token.text) in reading.calls:
            cost -= self._weights.known_call
        if reading.kids.get(node):
            cost += NEW_BRANCH + (self._weights.takes if self._all_are_needed(reading, node) else 0.0)
        if token.kind == EXCEPTION and node == PLAIN_ROOT:
            cost += NO_FRAMES
        if reading.last == node:
            cost -= self._weights.written_next
        if node > GROUP_ROOT:
            cost += self._cost_by_source(self._texts[node], token)
        return cost

    def _all_are_needed(self, reading: _Reading, node: int) -> bool:
        """Whether the lines to come would want all copies that can come to the nodes below."""
        if (self._width == 1 and self._questions > MAX_QUESTIONS) or reading.kids[node] > MAX_SIBLINGS:
            return False
        below = [child for child in self._below[node] if child in reading.used]
        wanted = sum(self._left[self._texts[child]] for child in below)
        can_come = sum(
            self._upstream(reading, other)
            for text in dict.fromkeys(self._texts[child] for child in below)
            for other in self._by_text[text]
            if other in reading.used
        )
        return wanted >= can_come - ROUNDING

    def _cost_by_source(self, before: str, token: Token) -> float:
        if before not in self._hints.sources:
            return 0.0
        if self._is_named(before, token.text):
            return -self._weights.named
        return self._weights.not_named if token.kind == FRAME else 0.0

    def _is_named(self, before: str, text: str) -> bool:
        """Whether the source of a frame names the function of the next one, or the exception."""
        key = (before, text)
        known = self._named.get(key)
        if known is None:
            known = self._named[key] = _names(self._hints.sources.get(before, "").strip(), text)
        return known


def _runs(tokens: Sequence[Token]) -> Counter[tuple[tuple[int, str], ...]]:
    """The lines between a header and the next exception, where no other header is between, with their number."""
    runs: Counter[tuple[tuple[int, str], ...]] = Counter()
    run: list[tuple[int, str]] | None = None
    for token in tokens:
        if token.kind == PLAIN_HEADER:
            run = []
        elif run is not None and token.kind in (FRAME, EXCEPTION):
            run.append((token.kind, token.text))
            if token.kind == EXCEPTION:
                runs[tuple(run)] += 1
                run = None
    return runs


def _names(source: str, text: str) -> bool:
    if not source:
        return False
    frame = frame_of(text)
    match = EXCEPTION_LINE.match(text)
    if frame is not None:
        name = frame.function.rpartition(".")[2]
    else:
        name = match[1].rpartition(".")[2] if match else ""
    if name == "AssertionError" and source.startswith("assert"):
        return True
    return bool(name) and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", source) is not None
