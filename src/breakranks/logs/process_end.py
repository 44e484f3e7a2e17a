"""The event of a process that ended, as reporters tell it: a code, where a negative one is a signal, or a signal."""

from __future__ import annotations

from breakranks.logs.log_events import INITIATING, Event, ExitEvent, LogLine


def process_end(
    reporter: str,
    line: LogLine,
    *,
    code: int = -1,
    signal: int = 0,
    rank: int = -1,
    local_rank: int = -1,
    pid: int = -1,
    host: str = "",
    first: bool = False,
    core_dumped: bool = False,
    role: str = INITIATING,
) -> list[Event]:
    """A list of the one event. ``code`` below -1 is a signal, as Python's subprocess has it; the host is that of the
    line where none is given."""
    return [
        ExitEvent(
            reporter=reporter,
            line=line,
            code=max(code, -1),
            signal=signal or (-code if code < -1 else 0),
            rank=rank,
            local_rank=local_rank,
            pid=pid,
            host=host or line.host,
            first=first,
            core_dumped=core_dumped,
            role=role,
        )
    ]
