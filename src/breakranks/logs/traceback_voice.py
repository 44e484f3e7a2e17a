"""The state machine that reads the tracebacks of one writer, whose lines are whole and in order.

It only decides which lines belong to a traceback. When that is complete, ``traceback_parser`` makes the value of it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from functools import lru_cache

from breakranks.logs.log_events import LogLine, Raised, TracebackEvent
from breakranks.logs.traceback_boxes import (
    ipython_type,
    is_box_end,
    is_box_header,
    is_ipython_end,
    is_ipython_header,
)
from breakranks.logs.traceback_lines import (
    CHAIN_LINES,
    FAILURES_LINE,
    GROUP_END,
    HEADER,
    IGNORED,
    IGNORED_LINE,
    MARK,
    MORE_OF_MESSAGE,
    QUOTES,
    RAY_FRAME,
    SPAWNED_PROCESS,
    THREAD_LINE,
    TRIGGERS,
    exception_of,
    frame_of,
    is_group_header,
    is_log_line,
    is_surely_exception,
)
from breakranks.logs.traceback_parser import parse_traceback

MAX_LINES = 8000  # of one traceback: the first half and the last half of them are kept
MAX_MESSAGE_BYTES = 64 * 1024
MAX_FOREIGN_LINES = 60  # between two lines of a traceback
QUIET_LINES = 40  # of others after an exception: what comes then is not joined to it
MAX_SYNTAX_ERROR_LINES = 12
MAX_BLANK_LINES = 6  # within a message
LINES_AFTER_THREAD = 3  # "Exception in thread …" counts for a traceback that begins this soon

_DIGITS = re.compile(r"\d")
_GROUP_HEADER = re.compile(r"  \+ Exception Group ")

Events = tuple[TracebackEvent, ...]
_parse = lru_cache(maxsize=256)(parse_traceback)


class VoiceReader:
    """Reads the lines of one writer. ``feed`` returns the tracebacks that became complete."""

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared  # others write into the same file: only what is safe is part of a message
        self.conflict = False  # a line did not fit: it is of another traceback at the same time
        self._state: Callable[[LogLine, str], Events] = self._outside
        self._reset()

    def _reset(self) -> None:
        self._state = self._outside
        self._lines: list[str] = []
        self._tail: deque[str] = deque(maxlen=MAX_LINES // 2)
        self._first: LogLine | None = None
        self._last = 0
        self._prefix = ""  # of the header and of the lines below it: digits in it vary
        self._shape = ""
        self._margin = ""
        self._end_mark = ""  # IPython: the type of the exception
        self._foreign = 0
        self._blank = 0
        self._closed = False  # the last line was the end of an exception group
        self._failures = 0  # lines with "====" in the message of a ChildFailedError
        self._in_ray = False  # frames of a remote task follow in the message
        self._message_bytes = 0
        self._thread = ""
        self._thread_line: LogLine | None = None
        self._thread_age = 0

    @property
    def open(self) -> bool:
        """Whether further lines may belong to what was read."""
        return self._first is not None or self._thread_line is not None

    def feed(self, line: LogLine) -> Events:
        text = line.text
        if self._prefix:
            text = self._without_prefix(text)
        return self._state(line, text)

    def finish(self) -> Events:
        """What is open, as far as it came."""
        if self._first is None or self._state == self._syntax_error:
            self._reset()
            return ()
        return self._end()

    # Each state is a method. It gets a line, and the text of it without the prefix of the header.

    def _outside(self, line: LogLine, text: str) -> Events:
        if MARK in text:
            self._begin(line, text)
        elif text.startswith("Exception in thread "):
            self._thread_of(line, THREAD_LINE.match(text))
        elif IGNORED_LINE.match(text):
            self._thread, self._thread_line, self._thread_age = IGNORED, line, 0
        elif text.startswith('  File "'):
            if frame_of(text) is not None:
                self._start(line, text, self._syntax_error)
        elif self._thread_line is not None:
            self._thread_age += 1
            if self._thread_age > LINES_AFTER_THREAD:
                self._reset()
        return ()

    def _thread_of(self, line: LogLine, match: re.Match[str] | None) -> None:
        if match is not None:
            self._thread, self._thread_line, self._thread_age = match[1] or "?", line, 0

    def _begin(self, line: LogLine, text: str) -> None:
        """A header: of which kind, and what is written before it."""
        if is_box_header(text):
            self._start(line, text, self._box)
            return
        if is_ipython_header(text):
            self._end_mark = ipython_type(text)
            self._start(line, text, self._ipython)
            return
        group = is_group_header(text)
        found = (_GROUP_HEADER if group else HEADER).search(text)
        if found is None:
            return
        self._prefix = text[: found.start()]
        self._shape = _DIGITS.sub("0", self._prefix)
        self._margin = self._prefix[: len(self._prefix) - len(self._prefix.lstrip())]
        self._start(line, text[found.start() :], self._group if group else self._frames)

    def _start(self, line: LogLine, text: str, state: Callable[[LogLine, str], Events]) -> None:
        self._first = self._thread_line or line
        self._keep(line, text)
        self._state = state

    def _keep(self, line: LogLine, text: str) -> None:
        if len(self._lines) < MAX_LINES // 2:
            self._lines.append(text[:MAX_MESSAGE_BYTES])
        else:
            self._tail.append(text[:MAX_MESSAGE_BYTES])
        self._last = line.position
        self._foreign = self._blank = 0

    def _frames(self, line: LogLine, text: str) -> Events:
        if text[:1] == " " or text[:1] == "\t":
            if MARK in text:
                return self._cut(line)
            self._keep(line, text)
            return ()
        if MARK in text:
            return self._cut(line)
        if text and self._is_exception(text):
            return self._exception(line, text)
        self.conflict |= text in CHAIN_LINES
        return self._skip(line)

    def _is_exception(self, text: str) -> bool:
        found = exception_of(text)
        if found is None or is_log_line(text):
            return False
        return not self._shared or is_surely_exception(text) or any(found[0] in line for line in self._lines[-3:])

    def _exception(self, line: LogLine, text: str) -> Events:
        self._keep(line, text)
        self._message_bytes = len(text)
        self._state = self._message
        self._in_ray = "ray::" in text
        if text.startswith("torch.") and "ChildFailedError:" in text:
            self._state = self._failure_summary
        return ()

    def _skip(self, line: LogLine) -> Events:
        """A line that does not belong to the traceback: of native code, or of another stream of the same process."""
        self._foreign += 1
        return self._end() if self._foreign > MAX_FOREIGN_LINES else ()

    def _cut(self, line: LogLine) -> Events:
        """A header in the middle of a traceback: the rest of the traceback is lost."""
        self.conflict = True
        ended = self._end()
        return ended + self._outside(line, line.text)

    def _message(self, line: LogLine, text: str) -> Events:
        if not text or text.isspace():
            self._state = self._gap
            return self._gap(line, text)
        if MARK in text:
            return self._header_in_message(line, text, self._lines[-1] if not self._tail else self._tail[-1])
        if text in CHAIN_LINES:
            return self._joined(line, text)
        if text[0] not in " \t" and (is_log_line(text) or (self._shared and not self._is_safe(text))):
            return self._finished(line)
        if text.startswith('  File "') and not self._in_ray:
            self.conflict = True
        self._in_ray = self._in_ray or RAY_FRAME.match(text) is not None
        return self._more(line, text)

    def _is_safe(self, text: str) -> bool:
        """Whether a line without an indent is of the message, although others may write between."""
        before = (self._tail[-1] if self._tail else self._lines[-1]).rstrip()
        return before.endswith((":", ",")) or MORE_OF_MESSAGE.match(text) is not None

    def _failure_summary(self, line: LogLine, text: str) -> Events:
        """The message of torchrun's ChildFailedError: between lines of "=", with the traceback of a rank in it."""
        if FAILURES_LINE.match(text):
            self._failures += 1
            if self._failures == 2:
                self._state = self._message
        return self._more(line, text)

    def _more(self, line: LogLine, text: str) -> Events:
        self._message_bytes += len(text) + 1
        if self._message_bytes > MAX_MESSAGE_BYTES:
            return self._finished(line)
        self._keep(line, text)
        return ()

    def _gap(self, line: LogLine, text: str) -> Events:
        """After blank lines in or after a message."""
        if not text or text.isspace():
            self._blank += 1
            return self._end() if self._blank > MAX_BLANK_LINES else ()
        if text in CHAIN_LINES:
            return self._joined(line, text)
        if text == QUOTES or MORE_OF_MESSAGE.match(text) or SPAWNED_PROCESS.match(text):
            return self._continued(line, text)
        if MARK in text:
            last = self._tail[-1] if self._tail else self._lines[-1]
            spawned = SPAWNED_PROCESS.match(last) is not None
            return self._header_in_message(line, text, last if spawned else "")
        if text[0] in " \t" and not text.startswith('  File "'):
            return self._continued(line, text)
        return self._finished(line)

    def _continued(self, line: LogLine, text: str) -> Events:
        self._keep_blanks(line)
        self._state = self._message
        return self._more(line, text)

    def _keep_blanks(self, line: LogLine) -> None:
        for _ in range(self._blank):
            self._keep(line, "")

    def _joined(self, line: LogLine, text: str) -> Events:
        self._blank = max(self._blank, 1)
        self._keep_blanks(line)
        self._keep(line, text)
        self._state = self._chained
        return ()

    def _chained(self, line: LogLine, text: str) -> Events:
        """After a line that joins two exceptions: the next one follows."""
        if not text or text.isspace():
            return ()
        if MARK in text:
            return self._header_within(line, text)
        if text.startswith("  | "):
            self._keep(line, text)
            self._state = self._group
            return ()
        if self._is_exception(text):
            return self._exception(line, text)
        return self._skip(line)

    def _header_in_message(self, line: LogLine, text: str, before: str) -> Events:
        """Another traceback, or one that is part of the message: of a process, a worker, a task elsewhere."""
        if before.rstrip().endswith((":", QUOTES)) or text.startswith((" ", "\t", "Original ")):
            self._keep_blanks(line)
            return self._header_within(line, text)
        return self._finished(line)

    def _header_within(self, line: LogLine, text: str) -> Events:
        if is_box_header(text):
            self._state = self._box
        elif is_ipython_header(text):
            self._end_mark = ipython_type(text)
            self._state = self._ipython
        else:
            self._state = self._group if is_group_header(text) else self._frames
        self._keep(line, text)
        return ()

    def _group(self, line: LogLine, text: str) -> Events:
        stripped = text.lstrip(" ")
        if self._closed and (stripped[:1] not in ("|", "+") or text.startswith("  + Exception Group ")):
            self._state = self._after_group
            return self._after_group(line, text)
        if stripped[:1] in ("|", "+") and len(stripped) < len(text):
            self._keep(line, text)
            self._closed = GROUP_END.match(text) is not None
            return ()
        return self._cut(line) if MARK in text else self._skip(line)

    def _after_group(self, line: LogLine, text: str) -> Events:
        if not text or text.isspace():
            self._blank += 1
            return self._end() if self._blank > MAX_BLANK_LINES else ()
        return self._joined(line, text) if text in CHAIN_LINES else self._finished(line)

    def _box(self, line: LogLine, text: str) -> Events:
        if MARK in text and is_box_header(text):
            return self._cut(line)
        self._keep(line, text)
        if is_box_end(text):
            self._state = self._frames
        return ()

    def _ipython(self, line: LogLine, text: str) -> Events:
        if is_ipython_end(text, self._end_mark):
            return self._exception(line, text)
        if MARK in text:
            return self._cut(line)
        self._keep(line, text)
        return ()

    def _syntax_error(self, line: LogLine, text: str) -> Events:
        """A SyntaxError of the program itself has no header: its place, the source, marks, the exception."""
        if text.startswith(("SyntaxError", "IndentationError", "TabError")):
            return self._exception(line, text)
        self._keep(line, text)
        if text[:1] in (" ", "\t", "") and len(self._lines) <= MAX_SYNTAX_ERROR_LINES and MARK not in text:
            return ()
        self._reset()
        return self._outside(line, text)

    def _linger(self, line: LogLine, text: str) -> Events:
        """Lines of others, after an exception to which another one may be joined."""
        if text in CHAIN_LINES:
            return self._joined(line, text)
        self._foreign += 1
        return self._finished(line) if may_begin(text) or self._foreign > QUIET_LINES else ()

    def _finished(self, line: LogLine) -> Events:
        """The line is not part of the traceback, and may begin another one."""
        if self._shared and not may_begin(line.text) and self._foreign <= QUIET_LINES:
            self._state = self._linger
            return ()
        return self._end() + self._outside(line, line.text)

    def _end(self) -> Events:
        if self._first is None:
            return ()
        raised = self._raised()
        event = TracebackEvent(raised=raised, line=self._first, last_position=self._last, thread=self._thread)
        self._reset()
        return (event,)

    def _raised(self) -> Raised:
        return _parse((*self._lines, *self._tail))

    def _without_prefix(self, text: str) -> str:
        """The text without what a logger wrote before the header, if it wrote the same before this line."""
        if text.startswith(self._prefix):
            return text[len(self._prefix) :]
        head = text[: len(self._prefix)]
        if _DIGITS.sub("0", head) == self._shape:
            return text[len(self._prefix) :]
        if len(self._lines) == 1 and not text.startswith(f"{self._margin}  File "):
            self._margin = ""  # only the header was indented
        return text.removeprefix(self._margin)


def may_begin(text: str) -> bool:
    """Whether a line can begin a traceback, or name the thread of one."""
    return any(trigger in text for trigger in TRIGGERS)
