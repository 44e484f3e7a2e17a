"""Known lines: what a line means and what to try. The rows are in tables by area."""

from __future__ import annotations

import re

from breakranks.logs.exception_table import EXCEPTION_TABLE
from breakranks.logs.known_lines_table import LINE_TABLE
from breakranks.logs.known_row import IN_BOTH, KnownRow, searchable
from breakranks.logs.log_events import DumpEvent, KnownEvent, LogLine
from breakranks.logs.nccl_rows import NCCL_ROWS

# The scanner looks only at lines with one of these, or of the modules for watchdogs and launchers.
TRIGGERS = (
    b"NCCL WARN",
    b"out of memory",
    b"Out of memory",
    b"OutOfMemoryError",
    b"oom-kill",
    b"oom_kill",
    b"memory limit",
    b" segfault at ",
    b"general protection fault",
    b"NVRM: Xid",
    b"CANCELLED AT",
    b"Terminating StepId",
    b"death signal",
    b" did not exit after ",
    b"killed due to ",
    b"keep-alive heartbeat",
    b"lost communication with",
    b"daemon has unexpectedly",
    b" is timed out.",
    b"Assertion `",
    b"free(): ",
    b"alloc(): ",
    b"alloc_consolidate(): ",
    b"munmap_chunk(): ",
    b"double free or",
    b"corrupted ",
    b"overflow detected",
    b"smashing detected",
    b"loading shared libraries",
    b"async exception",
    b"the entire process down",
    b"watchdog got stuck",
    b"acquire GIL",
    b"should dump",
    b"shared memory",
    b"</torch_",
    b"EI0005",
    b"EI0006",
    b"EL0004",
    b"debug info to",
    b"nccl trace to",
)

# Rows of exceptions that are known without their traceback too come last: their keys are those of the exceptions.
_LINE_ROWS = (*LINE_TABLE, *(row for row in EXCEPTION_TABLE if row.where == IN_BOTH))
ROWS: tuple[KnownRow, ...] = (*LINE_TABLE, *NCCL_ROWS, *EXCEPTION_TABLE)
# The same key in two tables has one meaning; the first row tells it.
_BY_KEY = {row.key: row for row in reversed(ROWS)}
_NCCL_WARN = "NCCL WARN"
_NCCL_PREFIX = re.compile(r"(?P<host>[\w.-]{1,255}):(?P<pid>\d+):\d+ \[(?P<device>\d+)\]")
_TORCH_RANK = re.compile(r"\[rank(\d+)\]:")
# torch 2.2 to 2.5: "NCCLPG debug info"; printed at level INFO only, so TORCH_CPP_LOG_LEVEL must be INFO.
_DUMP = re.compile(r"(?:dumping nccl trace to|(?:Finished writing|Writing) \w[\w ]* debug info to:?) (?P<path>/\S+)")


def read_known(line: LogLine) -> KnownEvent | DumpEvent | None:
    """The event of a line that the tables know; None for all other lines."""
    text = searchable(line.text)
    rows = NCCL_ROWS if _NCCL_WARN in text else _LINE_ROWS
    for row in rows:
        found = row.pattern.search(text)
        if found:
            return _event(row, found, line)
    dump = _DUMP.search(text)
    return DumpEvent(line=line, path=dump["path"], kind="recorder", rank=_rank(line, {})) if dump else None


def row_of(key: str) -> KnownRow:
    """The row with this key."""
    return _BY_KEY[key]


def _event(row: KnownRow, found: re.Match[str], line: LogLine) -> KnownEvent:
    values = {name: value for name, value in found.groupdict().items() if value}
    if row in NCCL_ROWS:
        prefix = _NCCL_PREFIX.search(searchable(line.text))
        values = {**(prefix.groupdict() if prefix else {}), **values}
    return KnownEvent(key=row.key, line=line, values=values, role=row.role, rank=_rank(line, values))


def _rank(line: LogLine, values: dict[str, str]) -> int:
    """The rank that the line names, or that of the line."""
    if values.get("rank", "").isdigit():
        return int(values["rank"])
    if line.rank >= 0:
        return line.rank
    found = _TORCH_RANK.search(line.text)
    return int(found.group(1)) if found else -1
