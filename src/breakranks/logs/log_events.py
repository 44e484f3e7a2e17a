"""What was read in logs: lines with their ranks, and the events that lines report. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from breakranks.snapshot.model import Frame

# What an event is in the course of a failure. An initiating event can be the first cause. A cascade follows the failure
# of another rank (connection reset). A teardown is the launcher ending the others (SIGTERM).
INITIATING, CASCADE, TEARDOWN, NOTE = "initiating", "cascade", "teardown", "note"


class LogLine(NamedTuple):
    """One line, without its prefix and without control sequences.

    ``rank`` is -1 where the line does not tell. ``voice`` identifies who wrote it: lines of one voice are in order and
    whole, lines of the voice "" may be of any rank. ``position`` is the offset of the line in its file. ``time`` is in
    seconds since the epoch, 0 where the line has none.
    """

    text: str
    rank: int = -1
    host: str = ""
    local_rank: int = -1
    attempt: int = 0
    voice: str = ""
    source: str = ""
    position: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """One exception of a traceback: ``module.Type: message``, with its frames, outermost first.

    ``message`` has all lines of the text, without the type. ``notes`` are those of ``add_note``. ``cause`` is the
    exception that it was raised from (``from``) or while handling which it was raised (``context``): the one that is
    printed before it. ``members`` are those of an exception group. ``complete``: its last line was seen.
    """

    type: str
    message: str = ""
    frames: tuple[Frame, ...] = ()
    notes: tuple[str, ...] = ()
    cause: Raised | None = None
    relation: str = ""  # of ``cause``: "from" or "context"
    members: tuple[Raised, ...] = ()
    complete: bool = True

    @property
    def text(self) -> str:
        """The type and the first line of the message, as the last line of a traceback."""
        first = self.message.split("\n", 1)[0]
        return f"{self.type}: {first}" if first else self.type


@dataclass(frozen=True, slots=True, kw_only=True)
class TracebackEvent:
    """A traceback that a rank printed. ``count`` copies of it were found in lines that name no rank. ``handled``: the
    rank printed more after it, so it went on."""

    raised: Raised
    line: LogLine  # its first line
    last_position: int = 0
    count: int = 1
    thread: str = ""  # "Exception in thread Thread-1:" printed it
    handled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitEvent:
    """A launcher, a shell or the kernel reports how a process ended. -1: not told.

    ``signal`` is a positive number. ``pid`` of the process, ``rank`` or only ``local_rank`` with ``host``. ``first``:
    the launcher takes it for the first failure it observed (its "root cause").
    """

    reporter: str  # torchrun, accelerate, deepspeed, mpirun, slurm, msrun, shell, kernel, python
    line: LogLine
    rank: int = -1
    local_rank: int = -1
    host: str = ""
    pid: int = -1
    code: int = -1
    signal: int = 0
    core_dumped: bool = False
    first: bool = False
    time: float = 0.0
    error_file: str = ""
    role: str = INITIATING


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutEvent:
    """A collective timed out on a rank, as its watchdog or gloo reports it. -1 and "": not told.

    ``group`` is the name or number of the process group. ``last_enqueued`` and ``last_completed`` are sequence numbers
    of works in that group; both equal: the rank did not enter the call that timed out.
    ``own``: its own watchdog fired; False: it only heard the signal of another rank.
    """

    line: LogLine
    rank: int = -1
    operation: str = ""
    sequence: int = -1
    group: str = ""
    description: str = ""
    timeout_ms: int = -1
    last_enqueued: int = -1
    last_started: int = -1
    last_completed: int = -1
    own: bool = True
    peer: str = ""  # gloo: address of the peer
    absent: str = ""  # the line itself names these ranks as those that never came, as ``1,3``
    frames: tuple[Frame, ...] = ()  # of the call that timed out, outermost first


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEvent:
    """A line that a row of the table of known lines explains. ``key`` is the row, ``values`` the parts of the line."""

    key: str
    line: LogLine
    values: dict[str, str]
    role: str
    rank: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartEvent:
    """A launcher starts the ranks again: attempt ``attempt``, counted from 1 for the first restart."""

    line: LogLine
    attempt: int
    left: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpEvent:
    """A line names a file that was dumped: a flight recorder (``recorder``) or a core (``core``)."""

    line: LogLine
    path: str
    kind: str
    rank: int = -1


Event = TracebackEvent | ExitEvent | TimeoutEvent | KnownEvent | RestartEvent | DumpEvent
