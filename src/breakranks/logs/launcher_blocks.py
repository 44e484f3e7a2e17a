"""Reports of several lines: torchrun's summary, notices of MPI launchers, native aborts, Python's fatal errors.

Other ranks may print between the lines of a report, so a block skips lines that are not its own, up to a limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime

from breakranks.logs.log_events import (
    INITIATING,
    TEARDOWN,
    Event,
    ExitEvent,
    LogLine,
    Raised,
    TimeoutEvent,
    TracebackEvent,
)
from breakranks.logs.process_end import process_end
from breakranks.snapshot.model import Frame

MAX_FOREIGN_LINES = 50
_SIGTERM = 15


class ReportBlock:
    """A report of which the first line was seen. ``take`` says whether a line belongs to it."""

    def __init__(self, line: LogLine, max_foreign: int = MAX_FOREIGN_LINES) -> None:
        self.line = line
        self.closed = False
        self._foreign_left = max_foreign
        self._max_foreign = max_foreign

    def feed(self, line: LogLine) -> tuple[bool, Iterable[Event]]:
        """Whether the line was part of the report, and the events that it completes."""
        events = self.take(line)
        if events is not None:
            self._foreign_left = self._max_foreign
            return True, events
        self._foreign_left -= 1
        if self._foreign_left <= 0:
            return False, self.finish()
        return False, ()

    def take(self, line: LogLine) -> Iterable[Event] | None:
        """The events that the line completes; None if the line is not of this report."""
        raise NotImplementedError

    def finish(self) -> Iterable[Event]:
        """Close the report; the events of what is complete enough."""
        self.closed = True
        return ()


class TorchrunSummary(ReportBlock):
    """The summary of torchrun and accelerate: "train.py FAILED", failures, the root cause (first observed failure)."""

    # torch 1.9 has no spaces before the colons, "Root Cause:" first and "Other Failures:" after it.
    _FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback|msg)\s*: ?(.*)$")
    _HEADER = re.compile(r"^\s*\[\d+\]:\s*$")
    _RULE = re.compile(r"^\s*(?:=|-|\*){10,}\s*$")
    _RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
    _EXIT = re.compile(r"(-?\d+) \(pid: (\d+)\)")

    def __init__(self, line: LogLine) -> None:
        super().__init__(line)
        self._fields: dict[str, str] = {}
        self._entry_line = line
        self._first = False
        self._root_seen = False
        self._note_section(line.text)

    def take(self, line: LogLine) -> Iterable[Event] | None:
        text = line.text
        if self._HEADER.match(text):
            events = self._entry()
            self._entry_line = line
            return events
        if self._RULE.match(text):
            events = self._entry()
            # The last rule closes the summary, except in torch 1.9: there "Other Failures" follow.
            if self._root_seen and events and text.lstrip().startswith(("=", "*")):
                self._foreign_left = self._max_foreign = 2
            return events
        field = self._FIELD.match(text)
        if field:
            self._fields.setdefault(field.group(1), field.group(2).strip())
            return ()
        return () if self._note_section(text) else None

    def finish(self) -> Iterable[Event]:
        self.closed = True
        return self._entry()

    def _note_section(self, text: str) -> bool:
        if "Root Cause" in text:
            self._first = self._root_seen = True
        elif text.strip() in ("Failures:", "Other Failures:"):
            self._first = False
        else:
            return False
        return True

    def _entry(self) -> list[Event]:
        """The failure of one rank, if its rank and exit code were read."""
        fields, self._fields = self._fields, {}
        rank = self._RANK.search(fields.get("rank", ""))
        exit_ = self._EXIT.search(fields.get("exitcode", ""))
        if not rank or not exit_:
            return []
        code = int(exit_.group(1))
        signal = -code if code < 0 else 0
        error_file = fields.get("error_file", "")
        return [
            ExitEvent(
                reporter="torchrun",
                line=self._entry_line,
                rank=int(rank.group(1)),
                local_rank=int(rank.group(2)),
                host=fields.get("host", ""),
                pid=int(exit_.group(2)),
                code=-1 if signal else code,
                signal=signal,
                first=self._first,
                time=_seconds(fields.get("time", "")),
                error_file="" if error_file == "<N/A>" else error_file,
                # The launcher itself sends SIGTERM to the ranks that are left.
                role=TEARDOWN if signal == _SIGTERM and not self._first else INITIATING,
            )
        ]


def _seconds(text: str) -> float:
    """``2026-01-31_12:00:00`` as seconds since the epoch, in the time zone of this machine; 0 if it is not that."""
    try:
        return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").timestamp()
    except ValueError:
        return 0.0


class JoinedReport(ReportBlock):
    """A report of a few lines that one pattern reads when they are joined: its lines are wrapped at varying places."""

    MAX_LINES = 12

    def __init__(
        self, line: LogLine, pattern: re.Pattern[str], build: Callable[[re.Match[str], LogLine], list[Event]]
    ) -> None:
        super().__init__(line, self.MAX_LINES)
        self._pattern = pattern
        self._build = build
        self._text = line.text
        self.first_events = self._try()

    def take(self, line: LogLine) -> Iterable[Event] | None:
        self._text += " " + line.text.strip()
        return self._try() or None

    def _try(self) -> list[Event]:
        found = self._pattern.search(self._text)
        if not found:
            return []
        self.closed = True
        return self._build(found, self.line)


class HydraNotice(ReportBlock):
    """The notice of MPICH and Intel MPI: "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"."""

    _PROCESS = re.compile(r"=\s+(?:RANK (?P<rank>\d+) )?PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)")
    _CODE = re.compile(r"=\s+EXIT CODE: (\d+)")
    _SIGNAL = re.compile(r"=\s+KILLED BY SIGNAL: (\d+)")
    # MPICH prints the number of the signal as the exit code, and the signal in words after the notice.
    _WORDS = re.compile(r"TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)")
    _RULE = re.compile(r"^\s*={10,}\s*$")

    def __init__(self, line: LogLine) -> None:
        super().__init__(line)
        self._rank = self._pid = self._code = -1
        self._signal = 0
        self._host = ""
        self._seen_end = False

    def take(self, line: LogLine) -> Iterable[Event] | None:
        words = self._WORDS.search(line.text)
        if words:
            self._signal, self._code = int(words.group(1)), -1
            return self.finish()
        if self._seen_end:
            return None
        if self._RULE.match(line.text):
            self._seen_end = True
            self._foreign_left = self._max_foreign = 2
            return ()
        return () if self._read_field(line.text) or line.text.lstrip().startswith("=  ") else None

    def _read_field(self, text: str) -> bool:
        process = self._PROCESS.search(text)
        code = self._CODE.search(text)
        signal = self._SIGNAL.search(text)
        if process:
            self._rank, self._pid = int(process["rank"] or -1), int(process["pid"])
            self._host = process["host"]
        elif code:
            self._code = int(code.group(1))
        elif signal:
            self._signal = int(signal.group(1))
        return bool(process or code or signal)

    def finish(self) -> Iterable[Event]:
        self.closed = True
        if self._pid < 0 and self._code < 0 and not self._signal:
            return ()
        role = TEARDOWN if self._signal == _SIGTERM else INITIATING
        return process_end(
            "mpirun",
            self.line,
            rank=self._rank,
            pid=self._pid,
            host=self._host,
            code=self._code,
            signal=self._signal,
            role=role,
        )


class PythonFatalError(ReportBlock):
    """ "Fatal Python error: Segmentation fault" and the stack of the current thread, as faulthandler prints them."""

    START = re.compile(r"Fatal Python error: (.*)$")
    _THREAD = re.compile(r"^\s*(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
    _FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
    _END = re.compile(r"^\s*(?:Extension modules:|Current thread's C stack trace)")

    def __init__(self, line: LogLine, message: str) -> None:
        super().__init__(line)
        self._message = message.strip()
        self._frames: list[Frame] = []
        self._current = False
        self._last_position = line.position

    def take(self, line: LogLine) -> Iterable[Event] | None:
        thread = self._THREAD.match(line.text)
        if self._END.match(line.text) or (thread and self._frames):
            self._last_position = line.position
            return self.finish()
        if thread:
            self._current = thread.group(1) == "Current thread"
            return ()
        frame = self._FRAME.match(line.text)
        if not frame:
            return None
        if self._current:
            number = frame["line"]
            self._frames.append(Frame(frame["function"], frame["file"], int(number) if number.isdigit() else 0))
            self._last_position = line.position
        return ()

    def finish(self) -> Iterable[Event]:
        self.closed = True
        raised = Raised(type="Fatal Python error", message=self._message, frames=tuple(reversed(self._frames)))
        return [TracebackEvent(raised=raised, line=self.line, last_position=self._last_position)]


class NativeException(ReportBlock):
    """ "terminate called after throwing an instance of 'c10::Error'", what() and the native stack of torch."""

    START = re.compile(r"terminate called after throwing an instance of '(.+?)'")
    _WHAT = re.compile(r"^\s*what\(\):\s+(.*)$")
    _STACK = re.compile(r"^Exception raised from \S+ at ")
    _FRAME = re.compile(r"^frame #\d+: (?P<function>.+?) \+ 0x[0-9a-f]+ \(0x[0-9a-f]+ in (?P<file>.+)\)\s*$")
    MAX_MESSAGE_LINES = 12

    def __init__(self, line: LogLine, type_: str) -> None:
        super().__init__(line, self.MAX_MESSAGE_LINES)
        self._type = type_
        self._message: list[str] = []
        self._pending: list[str] = []  # part of the message if the stack follows
        self._frames: list[Frame] = []
        self._last_position = line.position

    def take(self, line: LogLine) -> Iterable[Event] | None:
        what = self._WHAT.match(line.text)
        frame = self._FRAME.match(line.text)
        if what and not self._message:
            self._message.append(what.group(1))
        elif self._message and self._STACK.match(line.text):
            self._message += self._pending
            self._pending = []
        elif frame:
            self._frames.append(Frame(frame["function"], frame["file"], 0, native=True))
        elif self._frames and not line.text.strip():
            return self.finish()
        else:
            self._pending.append(line.text)
            return None
        self._last_position = line.position
        return ()

    def finish(self) -> Iterable[Event]:
        self.closed = True
        raised = Raised(type=self._type, message="\n".join(self._message), frames=tuple(reversed(self._frames)))
        return [TracebackEvent(raised=raised, line=self.line, last_position=self._last_position)]


class CollectiveStack(ReportBlock):
    """ "Stack trace of the failed collective:", torch 2.6 and later: where the call that timed out was made."""

    START = "Stack trace of the failed collective:"
    _FRAME = re.compile(r"^#\d+ (?P<function>.+?) from (?P<file>.+):(?P<line>\d+)\s*$")
    _RANK = re.compile(r"\[rank(\d+)\]:")

    def __init__(self, line: LogLine) -> None:
        super().__init__(line, 2)
        self._frames: list[Frame] = []

    def take(self, line: LogLine) -> Iterable[Event] | None:
        frame = self._FRAME.match(line.text)
        if not frame:
            return self.finish() if not line.text.strip() else None
        self._frames.append(Frame(frame["function"], frame["file"], int(frame["line"])))
        return ()

    def finish(self) -> Iterable[Event]:
        self.closed = True
        rank = self._RANK.search(self.line.text)
        known = self.line.rank if self.line.rank >= 0 else int(rank.group(1)) if rank else -1
        if not self._frames:
            return ()
        return [TimeoutEvent(line=self.line, rank=known, frames=tuple(reversed(self._frames)))]


_NOTICED = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+)(?: on node (?P<host>\S+))?\s+exited on\s+signal (?P<signal>\d+)"
)
_DETECTED = re.compile(
    r"one or more processes exited with non-zero status.*?(?:Process name: \[\S*,\s*(?P<rank>\d+)\]\s+)?"
    r"Exit code:\s+(?P<code>\d+)"
)
_ABORT = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+) .*?[Ee]rrorcode:? (?P<code>-?\d+)")


def open_mpi_report(line: LogLine) -> JoinedReport | None:
    """The report of Open MPI 4 or 5 that a line begins."""
    text = line.text
    if " noticed that process rank " in text:
        return JoinedReport(line, _NOTICED, _ended_by_signal)
    if " detected that one or more processes" in text:
        return JoinedReport(line, _DETECTED, _ended_with_code)
    if "MPI_ABORT was invoked on rank" in text:
        return JoinedReport(line, _ABORT, _called_abort)
    return None


def _ended_by_signal(found: re.Match[str], line: LogLine) -> list[Event]:
    pid = int(found["pid"]) or -1  # Open MPI prints 0 where it does not know it
    rank, signal = int(found["rank"]), int(found["signal"])
    return process_end("mpirun", line, rank=rank, pid=pid, host=found["host"] or "", signal=signal, first=True)


def _ended_with_code(found: re.Match[str], line: LogLine) -> list[Event]:
    return process_end("mpirun", line, rank=int(found["rank"] or -1), code=int(found["code"]), first=True)


def _called_abort(found: re.Match[str], line: LogLine) -> list[Event]:
    return process_end("mpirun", line, rank=int(found["rank"]), code=int(found["code"]))
