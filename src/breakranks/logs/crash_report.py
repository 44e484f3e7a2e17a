"""What the logs of a job show: the first cause, the ranks that failed because of it, and what each rank did at its end.
Plain values; ``show.crash_lines`` words them."""

from __future__ import annotations

from dataclasses import dataclass, field

from breakranks.logs.log_events import LogLine, Raised, TimeoutEvent
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Frame

EXCEPTION, SIGNAL, OUT_OF_MEMORY, TIMEOUT, EXIT, LAUNCHER_FAILED = (
    "exception",
    "signal",
    "out-of-memory",
    "timeout",
    "exit",
    "launcher",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckCall:
    """The collective that timed out: what the watchdogs of the waiting ranks report. ``waiting`` entered it."""

    operation: str = ""
    sequence: int = -1
    group: str = ""
    timeout_ms: int = -1
    waiting: RankSet = field(default_factory=RankSet)
    last_enqueued: int = -1  # of the ranks that did not enter it


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCause:
    """The failure that the others follow from. ``grounds`` are keys of ``show.wording.crash_wording``.

    ``area``: workload, infrastructure or either; ``restart``: whether a start without a change may help (yes, no,
    perhaps). ``known`` is a row of the table of known lines or exceptions that explains it.
    """

    kind: str
    ranks: RankSet
    confidence: str
    raised: Raised | None = None
    where: Frame | None = None
    signal: int = 0
    code: int = -1
    core_dumped: bool = False
    stuck: StuckCall | None = None
    alone: bool = False  # the job is one process, which has no rank
    swallowed: bool = False  # the rank handled the exception and went on, without the calls that the others wait for
    known: str = ""
    line: LogLine | None = None
    area: str = "workload"
    restart: str = "perhaps"
    grounds: tuple[str, ...] = ()
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGroup:
    """Equal tracebacks of some ranks. ``role``: initiating, cascade, teardown or note."""

    ranks: RankSet
    count: int
    raised: Raised
    role: str
    handled: bool = False
    known: str = ""
    line: LogLine
    thread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportExit:
    """Ranks that ended in the same way. ``local``: ``ranks`` are local ranks, of ``host``."""

    ranks: RankSet
    code: int
    signal: int
    core_dumped: bool = False
    reporter: str = ""
    role: str = "initiating"
    launcher_first: bool = False
    error_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLine:
    """A known line, how often it was seen, and on which ranks."""

    key: str
    ranks: RankSet
    count: int
    values: dict[str, str]
    role: str
    line: LogLine


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """One start of the job."""

    number: int
    cause: FirstCause | None
    victims: RankSet
    groups: tuple[ReportGroup, ...]
    exits: tuple[ReportExit, ...]
    lines: tuple[ReportLine, ...]
    timeouts: tuple[TimeoutEvent, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """The whole report. ``attempts`` has at least one; the last one ended the job."""

    attempts: tuple[AttemptReport, ...]
    ranks: RankSet
    world: int = 0
    dumps: tuple[str, ...] = ()
    cores: tuple[str, ...] = ()
    files: int = 0
    bytes_read: int = 0
    problems: tuple[str, ...] = ()
    older: tuple[str, ...] = ()
    earlier_runs: int = 0
    of_run: bool = False  # of a job that ``breakranks run`` has started
    progress: str = ""  # the line of the last completed step

    @property
    def last(self) -> AttemptReport:
        return self.attempts[-1]

    @property
    def cause(self) -> FirstCause | None:
        return self.last.cause
