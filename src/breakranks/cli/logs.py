"""Read the logs of a job and report the first cause: which rank failed first, with which exception, and who followed.

Logs may be of torchrun, accelerate, deepspeed, srun, mpirun, msrun or `breakranks run`: one file of all ranks, a file
per rank, or a folder; also compressed. Equal tracebacks of many ranks are printed once, and interleaved ones are taken
apart. Flight recorder dumps that the log names are read as well.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

from breakranks.backend.logged_dumps import with_dumps
from breakranks.cli import target_args, terminal_output
from breakranks.cli.exit_status import FOUND, OK
from breakranks.cli.progress_line import ProgressLine
from breakranks.errors import UsageError
from breakranks.logs.crash_report import CrashReport
from breakranks.logs.job_logs import GrowingLogs, JobLogs, ReadOptions
from breakranks.logs.line_search import LineFilter, found_lines
from breakranks.logs.log_sources import FoundSources, find_sources
from breakranks.rankset import RankSet
from breakranks.show.crash_json import report_json
from breakranks.show.crash_lines import report_lines
from breakranks.show.json_output import to_text
from breakranks.show.terminal_text import Line

EXAMPLES = """
breakranks logs train.log                 one file with the output of all ranks
breakranks logs logs/                     a folder: torchrun --log-dir, msrun, files per rank
breakranks logs rank*.log.gz              a file per rank, compressed
breakranks logs breakranks-logs/latest    the newest job of `breakranks run`
kubectl logs train-0 | breakranks logs -  standard input
breakranks logs train.log --rank 3 --grep loss   the lines of rank 3 with "loss", without prefixes
breakranks logs train.log --follow        report each failure while the job runs
breakranks logs train.log --json | jq .cause     the first cause as JSON
"""

_POLL_SECONDS = 0.5
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])\Z")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="FILE|DIR|-", nargs="+", help="log files, folders of them, or - for standard input"
    )
    target_args.add_rank(parser, "only what these ranks wrote, such as 0-3,7")
    parser.add_argument(
        "--since", metavar="TIME", help="only what was written since 10m, 2h, or 2026-11-19T20:50 (lines with a time)"
    )
    parser.add_argument("--grep", metavar="REGEX", help="print the lines that match, with their ranks, and no report")
    parser.add_argument("--follow", action="store_true", help="read on while the logs grow, until Ctrl-C")
    target_args.add_output(parser, full="print all frames, whole messages and every group")


def run(args: argparse.Namespace) -> int:
    ranks = RankSet.parse(args.rank) if args.rank else None
    since = _since(args.since)
    if args.grep is not None and args.json:
        raise UsageError("--grep prints lines, --json a report", "Use one of them.")
    found = find_sources(args.paths, expected=args.follow)
    if args.grep is not None:
        return _search(found, LineFilter(pattern=_pattern(args.grep), ranks=ranks, since=since), args)
    options = ReadOptions(since=since, ranks=ranks)
    report = with_dumps(_followed(found, options, args) if args.follow else _read(found, options))
    _show(report, args)
    return FOUND if report.cause is not None else OK


def _read(found: FoundSources, options: ReadOptions) -> CrashReport:
    logs = JobLogs(found, options)
    line = ProgressLine()
    logs.read(progress=line.reading)
    line.done()
    return logs.report()


def _followed(found: FoundSources, options: ReadOptions, args: argparse.Namespace) -> CrashReport:
    """Read until Ctrl-C. Each time the first cause changes, it is printed."""
    told: object = None
    with closing(GrowingLogs(found, options)) as logs:
        try:
            while True:
                if logs.poll():
                    report = logs.report()
                    cause = report.cause
                    now = (cause.kind, cause.ranks, cause.raised) if cause is not None else None
                    if now is not None and now != told:
                        told = now
                        _show(report, args)
                        sys.stdout.flush()
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            pass
        logs.finish()
        return logs.report()


def _search(found: FoundSources, wanted: LineFilter, args: argparse.Namespace) -> int:
    style = terminal_output.look(args)
    count = 0
    for prefix, text in found_lines(found, wanted, follow=args.follow):
        count += 1
        terminal_output.show(_line(prefix, text), style)
    return FOUND if count else OK


def _line(prefix: str, text: str) -> Iterator[Line]:
    yield ((f"[{prefix}] ", "rank"), text) if prefix else (text,)


def _show(report: CrashReport, args: argparse.Namespace) -> None:
    if args.json:
        sys.stdout.write(to_text(report_json(report)))
    else:
        style = terminal_output.look(args)
        terminal_output.show(report_lines(report, style), style)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--grep: {text!r} is not a regular expression: {error}", "Put a \\ before ( [ * + ?"
        ) from None


def _since(text: str | None) -> float:
    """Return a moment: an age (10m) or a date and time."""
    if not text:
        return 0.0
    if age := _AGE.match(text.strip()):
        return time.time() - float(age[1]) * _UNIT_SECONDS[age[2]]
    try:
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise UsageError(
            f"--since {text!r} is not a time", "Give an age, such as 90s, 10m, 2h or 1d, or 2026-11-19T20:50."
        ) from None
