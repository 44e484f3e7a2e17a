"""The lines of one whole traceback as a value: exceptions with their frames, causes, notes and members of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from breakranks.logs.log_events import Raised
from breakranks.logs.traceback_boxes import boxed_frames, ipython_frames, is_box_header, is_ipython_header
from breakranks.logs.traceback_lines import (
    CHAIN_LINES,
    GROUP_END,
    HEADER,
    QUOTES,
    RAY_FRAME,
    REMOTE_TRACEBACK,
    exception_of,
    frame_of,
    is_group_header,
    is_log_line,
)
from breakranks.snapshot.model import Frame

MAX_FRAMES = 1000
MAX_DEPTH = 60  # of groups and of tracebacks within messages
MAX_CHAIN = 200  # exceptions that are printed one after the other


def parse_traceback(lines: Sequence[str]) -> Raised:
    """The last exception of the traceback. Its ``cause`` is the one before. Lines that fit nowhere are left out."""
    return _Parser(list(lines)).chain(nested=False)


class _Parser:
    def __init__(self, lines: list[str], depth: int = 0) -> None:
        self.lines = lines
        self.at = 0
        self.depth = depth

    @property
    def line(self) -> str | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def chain(self, *, nested: bool) -> Raised:
        """Exceptions that were raised one from the other, as they are printed: the cause first."""
        raised, relation = self.exception(), ""
        for _ in range(MAX_CHAIN):
            relation = self._relation(nested)
            if not relation:
                break
            following = self.exception()
            if not (following.type or following.frames or following.members):
                return replace(raised, complete=False)
            raised = _with_cause(following, raised, relation)
        return raised

    def _relation(self, nested: bool) -> str:
        """Consume blank lines and the line that joins two exceptions, if it comes next."""
        at = self.at
        while at < len(self.lines) and (not self.lines[at].strip() or self.lines[at] == QUOTES):
            at += 1
        if at == len(self.lines) or self.lines[at].strip() not in CHAIN_LINES:
            return ""
        # A traceback in a message ends with an empty line, and an empty line comes before each line that joins.
        if nested and at - self.at > 1:
            return ""
        self.at = at + 1
        return CHAIN_LINES[self.lines[at].strip()]

    def exception(self) -> Raised:
        """One exception: header, frames, type, message. At the end of the lines it may lack any of them."""
        while self.line is not None and (not self.line.strip() or _is_remote(self.line)):
            self.at += 1
        if self.line is None:
            return Raised(type="", complete=False)
        if is_group_header(self.line) or self.line.startswith(("  | ", "  + ")):
            return self._group()
        if is_box_header(self.line):
            frames, self.at = boxed_frames(self.lines, self.at)
        elif is_ipython_header(self.line):
            frames, self.at = ipython_frames(self.lines, self.at)
        else:
            if HEADER.search(self.line):
                self.at += 1
            frames = self._frames()
        return self._type_and_message(frames)

    def _frames(self) -> list[Frame]:
        frames: list[Frame] = []
        while (text := self.line) is not None:
            if text[:1] in (" ", "\t"):
                frame = frame_of(text)
                if frame is not None:
                    frames.append(frame)
            elif text and (HEADER.search(text) or text in CHAIN_LINES or _is_exception(text)):
                break
            self.at += 1
        return frames

    def _type_and_message(self, frames: list[Frame]) -> Raised:
        kept = frames_within_limit(frames)
        found = exception_of(self.line) if self.line is not None else None
        if found is None:
            return Raised(type="", frames=kept, complete=False)
        has_message = found[0] != self.line
        self.at += 1
        name, first = found
        message, nested = self._message(first)
        text, notes = _split_notes(name, first, message, has_message)
        raised = Raised(type=name, message=text, notes=notes, frames=kept)
        return _with_cause(raised, nested, "from") if nested is not None else raised

    def _message(self, first: str) -> tuple[list[str], Raised | None]:
        """The lines after the first one of the message, and the traceback that is printed within it."""
        message: list[str] = []
        nested: Raised | None = None
        in_ray = RAY_FRAME.match(first) is not None
        while (text := self.line) is not None and not self._joins():
            in_ray = in_ray or RAY_FRAME.match(text) is not None
            if self.depth < MAX_DEPTH and (HEADER.search(text) or (in_ray and frame_of(text) is not None)):
                inner = self._nested()
                nested = inner if nested is None else _with_cause(nested, inner, "from")
            elif text == QUOTES:
                self.at += 1
            else:
                message.append(text)
                self.at += 1
        while message and not message[-1].strip():
            message.pop()
        return message, nested

    def _joins(self) -> bool:
        at = self.at
        if self.lines[at].strip():
            return False
        while at < len(self.lines) and not self.lines[at].strip():
            at += 1
        return at < len(self.lines) and self.lines[at].strip() in CHAIN_LINES

    def _nested(self) -> Raised:
        """A traceback in a message. Its lines have the margin of its header, which may come after other words."""
        header = self.lines[self.at]
        match = HEADER.search(header)
        margin = header[: _margin(header)] if match and match.start() else ""
        if not margin:
            inner = _Parser(self.lines, self.depth + 1)
            inner.at = self.at
            raised = inner.chain(nested=True)
            self.at = max(inner.at, self.at + 1)
            return raised
        start, self.at = self.at, self.at + 1
        while self.line is not None and (self.line.startswith(margin) or not self.line.strip()):
            self.at += 1
        lines = [line.removeprefix(margin) for line in self.lines[start : self.at]]
        return _Parser(lines, self.depth + 1).chain(nested=True)

    def _group(self) -> Raised:
        """The tree of an exception group: its own lines, then those of each member, deeper by two columns."""
        start = self.at
        while self.line is not None and self.line[:1] == " " and self.line.lstrip()[:1] in ("|", "+"):
            self.at += 1
            if self.line is not None and is_group_header(self.line) and _margin(self.line) == 2:
                break
        if self.at == start:
            self.at += 1
        return group_of(self.lines[start : self.at], self.depth)


def group_of(lines: Sequence[str], depth: int = 0) -> Raised:
    """An exception group from its lines with margins (``  | ``, ``  +-+---- 1 ----``)."""
    own: list[str] = []
    members: list[list[str]] = []
    base = min(map(_margin, lines))
    closed = GROUP_END.match(lines[-1]) is not None
    for line in lines:
        margin = _margin(line)
        if margin <= base and "+-+--" not in line:
            own.append(line[margin + 2 :])
        elif "+-+--" in line and margin <= base:
            members.append([])
        elif margin == base + 2 and line.lstrip().startswith("+--") and "+-+--" not in line:
            if not GROUP_END.match(line):
                members.append([])
        elif members:
            members[-1].append(line)
    parser = _Parser(own, depth + 1)
    raised = parser.chain(nested=False)
    found = tuple(_member(member, depth + 1) for member in members) if depth < MAX_DEPTH else ()
    return replace(
        raised, members=tuple(each for each in found if each is not None), complete=raised.complete and closed
    )


def _member(lines: list[str], depth: int) -> Raised | None:
    if not lines:
        return None
    base = min(_margin(line) for line in lines)
    if any("+-+--" in line for line in lines):
        return group_of(lines, depth)
    stripped = [line[base + 2 :] for line in lines]
    if stripped[0].startswith(("and ", "... ")):
        return None  # "and 3 more exceptions", "... (max_group_depth is 10)"
    return _Parser(stripped, depth).chain(nested=False)


def frames_within_limit(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The first and the last frames of a recursion that has too many."""
    if len(frames) <= MAX_FRAMES:
        return tuple(frames)
    return (*frames[: MAX_FRAMES // 2], *frames[-MAX_FRAMES // 2 :])


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_remote(text: str) -> bool:
    return text == QUOTES or REMOTE_TRACEBACK.match(text) is not None


def _is_exception(text: str) -> bool:
    return exception_of(text) is not None and not is_log_line(text)


def _split_notes(name: str, first: str, more: list[str], has_message: bool) -> tuple[str, tuple[str, ...]]:
    """The message and the notes. Only of a message that has one line for certain can they be told apart."""
    one_line = not has_message or name == "KeyError" or first.endswith((" sub-exceptions)", " sub-exception)"))
    if one_line:
        return first, tuple(more)
    return "\n".join([first, *more]).lstrip("\n"), ()


def _with_cause(raised: Raised, cause: Raised, relation: str) -> Raised:
    """The exception with a cause. One that has a cause already, in its message, gets it behind that."""
    if raised.cause is None:
        return replace(raised, cause=cause, relation=relation)
    return replace(raised, cause=_with_cause(raised.cause, cause, relation))
