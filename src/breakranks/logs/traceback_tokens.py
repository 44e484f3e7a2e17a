"""Lines that many processes wrote into one file, as tokens: torn lines split, and each line's part in a traceback."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from breakranks.logs.log_events import LogLine
from breakranks.logs.traceback_lines import (
    CHAIN_LINES,
    GROUP_LINE,
    HEADER,
    IGNORED,
    IGNORED_LINE,
    MARK,
    THREAD_LINE,
    frame_of,
    is_group_header,
    is_log_line,
    is_surely_exception,
)

# The parts of a line.
PLAIN_HEADER, GROUP_HEADER, FRAME, EXCEPTION, CHAIN, GROUP, SOURCE, THREAD, OTHER = range(9)

_BEGINNINGS = re.compile(r'  File "[^"]+", line \d+|(?:Exception Group )?Traceback \(most recent call last\):')
# A function's name has no spaces: what follows it is another line, torn.
_WHOLE_FRAME = re.compile(r'(  File "[^"]+", line \d+, in (?:[\w.]*(?:<[^<>]+>)?)+)(?=  |\Z)')
MAX_MESSAGE_LINES = 100
_MAX_PIECES = 64  # of a torn line


class Token(NamedTuple):
    """A line: what it is, its text, and the line of the file that it is from."""

    kind: int
    text: str
    line: LogLine


@dataclass(slots=True)
class Hints:
    """What follows what in the file, as far as it tells who wrote a line."""

    sources: dict[str, str] = field(default_factory=dict)  # of a frame's line: the source below it, most often
    certain: frozenset[str] = frozenset()  # sources that came as often as the frames that they are below
    more: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of an exception's line: the rest of its message


def tokens_of(lines: Iterable[LogLine]) -> list[Token]:
    """The tokens of lines, in their order. Marks below a source line and empty lines are left out."""
    held = list(lines)
    known = Counter(line.text for line in held)
    found: list[Token] = []
    for line in held:
        for text in _pieces(line.text, known):
            kind = _kind_of(text)
            if text.strip() and not _is_marks(text):
                found.append(Token(kind, text, line))
    return found


def _kind_of(text: str) -> int:
    if not text or text.isspace():
        return OTHER
    first = text[0]
    if MARK in text:
        return GROUP_HEADER if is_group_header(text) and text.startswith("  + ") else _header_kind(text)
    if first == " ":
        if frame_of(text) is not None:
            return FRAME
        if GROUP_LINE.match(text):
            return GROUP
        return SOURCE if text.startswith("    ") else OTHER
    if text in CHAIN_LINES:
        return CHAIN
    if text.startswith("Exception "):
        return THREAD if thread_of(text) else OTHER
    return EXCEPTION if is_surely_exception(text) and not is_log_line(text) else OTHER


def _header_kind(text: str) -> int:
    if GROUP_LINE.match(text):
        return GROUP
    return PLAIN_HEADER if HEADER.search(text) else OTHER


def thread_of(text: str) -> str:
    """The thread that the line before a header names, or ``ignored``."""
    if IGNORED_LINE.match(text):
        return IGNORED
    match = THREAD_LINE.match(text)
    return match[1] if match else ""


def _is_marks(text: str) -> bool:
    return not text.strip(" ^~\t")


def _pieces(text: str, known: Counter[str]) -> Iterator[str]:
    """The lines of a line: two processes' writes can come without a line break between them."""
    starts = [match.start() for match in _BEGINNINGS.finditer(text)][:_MAX_PIECES] if len(text) > 20 else []
    if text.startswith("  + ") or not starts or GROUP_LINE.match(text):
        yield from _repeated(text, known)
        return
    if starts[0] > 0 and known[text] == 1:
        head = text[: starts[0]]
        if known[head] or is_surely_exception(head):
            yield from _repeated(head, known)
            text = text[starts[0] :]
            starts = [start - starts[0] for start in starts]
    if starts[0] > 0:
        starts = starts[1:] if len(starts) > 1 else []
        starts.insert(0, 0)
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield from _frame_and_rest(text[start:end], known)


def _frame_and_rest(text: str, known: Counter[str]) -> Iterator[str]:
    if known[text] > 1:
        yield text
        return
    match = _WHOLE_FRAME.match(text)
    header = HEADER.match(text)
    end = match.end() if match else header.end() if header else len(text)
    if text.startswith('  File "') and not match:
        end = _longest_known(text, known) or len(text)
    yield text[:end]
    if end < len(text):
        yield text[end:]


def _repeated(text: str, known: Counter[str]) -> Iterator[str]:
    """Lines that are known from elsewhere, written one behind the other, as they are. Anything else is one line."""
    rest = text
    found: list[str] = []
    while rest and known[text] == 1 and text[:1].isalpha() and len(found) < _MAX_PIECES:
        size = _longest_known(rest, known, text)
        if not size:
            break
        found.append(rest[:size])
        rest = rest[size:]
    if found and not rest:
        yield from found
    else:
        yield text


def _longest_known(text: str, known: Counter[str], whole: str = "") -> int:
    """The length of the longest line that the text begins with, of those that are in the file by themselves."""
    if len(text) > 2000:
        return 0
    return next((size for size in range(len(text), 5, -1) if text[:size] != whole and text[:size] in known), 0)


def hints_of(tokens: Sequence[Token]) -> Hints:
    """The source below each frame, and the lines of messages that are safe to attribute."""
    places: dict[str, list[int]] = defaultdict(list)
    votes: Counter[tuple[str, str]] = Counter()
    for at, token in enumerate(tokens):
        if token.kind in (FRAME, SOURCE):
            places[token.text].append(at)
        if token.kind == SOURCE and at and tokens[at - 1].kind == FRAME:
            votes[tokens[at - 1].text, token.text] += 1
    sources: dict[str, str] = {}
    needed: Counter[str] = Counter()
    for (frame, source), _times in votes.most_common():
        if frame not in sources and _always_before(places[frame], places[source][needed[source] :]):
            sources[frame] = source
            needed[source] += len(places[frame])
    certain = frozenset(source for source in needed if needed[source] == len(places[source]))
    return Hints(sources, certain, _rest_of_messages(tokens))


def _always_before(first: Sequence[int], then: Sequence[int]) -> bool:
    """Whether there is an own later line of the second kind for each line of the first kind."""
    return len(first) <= len(then) and all(a < b for a, b in zip(first, then[-len(first) :], strict=True))


def _rest_of_messages(tokens: Sequence[Token]) -> dict[str, tuple[str, ...]]:
    """For each exception the lines that came as often as it, directly below it in most copies of several."""
    counts = Counter(token.text for token in tokens)
    places: dict[str, list[int]] = defaultdict(list)
    for at, token in enumerate(tokens):
        if token.kind == EXCEPTION and counts[token.text] > 1:
            places[token.text].append(at)
    more: dict[str, tuple[str, ...]] = {}
    for text, starts in places.items():
        lines: list[str] = []
        while len(lines) < MAX_MESSAGE_LINES:
            following = Counter(_line_of_message(tokens, at + len(lines) + 1) for at in starts)
            line, times = following.most_common(1)[0]
            if not line or counts[line] != counts[text] or times * 2 <= len(starts):
                break
            lines.append(line)
        more[text] = tuple(lines)
    return more


def _line_of_message(tokens: Sequence[Token], at: int) -> str:
    token = tokens[at] if at < len(tokens) else None
    return token.text if token and token.kind == OTHER and not is_log_line(token.text) else ""
