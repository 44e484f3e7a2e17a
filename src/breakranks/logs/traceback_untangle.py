"""Tracebacks that many processes printed into one file, their lines mixed, as events with the number of copies."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

from breakranks.logs.log_events import LogLine, Raised, TracebackEvent
from breakranks.logs.traceback_lines import exception_of, frame_of
from breakranks.logs.traceback_links import Part, Whole, linked
from breakranks.logs.traceback_parser import frames_within_limit, parse_traceback
from breakranks.logs.traceback_search import TracebackSegment, segments_of
from breakranks.logs.traceback_tokens import (
    GROUP_HEADER,
    PLAIN_HEADER,
    THREAD,
    Hints,
    Token,
    hints_of,
    thread_of,
    tokens_of,
)


def untangled(lines: Iterable[LogLine]) -> list[TracebackEvent]:
    """The tracebacks in lines that belong to some, with other lines between them."""
    tokens = tokens_of(lines)
    hints = hints_of(tokens)
    parts = [_part(segment, hints) for segment in segments_of(tokens, hints)]
    places, thread = _Places(tokens), _thread(tokens)
    events = [_event(whole, parts, places, tokens, thread) for whole in linked(parts, tokens)]
    return sorted(events, key=lambda event: (event.line.position, event.last_position))


def _part(segment: TracebackSegment, hints: Hints) -> Part:
    begin, end = (segment.texts[0], segment.texts[-1]) if segment.texts else ("", "")
    if segment.group:
        raised = parse_traceback(("  + Exception Group Traceback (most recent call last):", *segment.texts))
    else:
        raised = _raised(segment.texts, hints)
    return Part(raised, segment.copies, begin, end if segment.complete else "")


def _raised(texts: Sequence[str], hints: Hints) -> Raised:
    frames = [frame for frame in map(frame_of, texts) if frame is not None]
    kept = frames_within_limit(frames)
    found = exception_of(texts[-1]) if texts and frame_of(texts[-1]) is None else None
    if found is None:
        return Raised(type="", frames=kept, complete=False)
    return Raised(type=found[0], message="\n".join((found[1], *hints.more.get(texts[-1], ()))), frames=kept)


class _Places:
    """Where lines are in the file."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.headers = [at for at, token in enumerate(tokens) if token.kind in (PLAIN_HEADER, GROUP_HEADER)]
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        for at, token in enumerate(tokens):
            self.counts[token.text] += 1
            self.first.setdefault(token.text, at)
            self.last[token.text] = at

    def header_of(self, texts: Sequence[str]) -> int:
        """The header before the first occurrence of the line that is the rarest."""
        known = [text for text in texts if text in self.first]
        if not known:
            return self.headers[0] if self.headers else 0
        at = self.first[min(known, key=lambda text: self.counts[text])]
        index = bisect_right(self.headers, at) - 1
        return self.headers[max(index, 0)] if self.headers else at


def _event(
    whole: Whole, parts: Sequence[Part], places: _Places, tokens: Sequence[Token], thread: str
) -> TracebackEvent:
    last_part, first_part = parts[whole.parts[0]], parts[whole.parts[-1]]
    header = places.header_of([first_part.begin, first_part.end])
    end = places.last.get(last_part.end or last_part.begin, header)
    return TracebackEvent(
        raised=whole.raised,
        line=tokens[header].line,
        last_position=tokens[max(end, header)].line.position,
        count=whole.copies,
        thread=thread,
    )


def _thread(tokens: Sequence[Token]) -> str:
    """The thread, if lines before headers name only one and as many as there are headers."""
    names = Counter(thread_of(token.text) for token in tokens if token.kind == THREAD)
    headers = sum(token.kind in (PLAIN_HEADER, GROUP_HEADER) for token in tokens)
    return next(iter(names)) if len(names) == 1 and names.total() >= headers else ""
