"""Watch a running job, and report when no rank makes progress any more: the verdict of `why`, while it still hangs.

Progress is what the ranks themselves show: calls in their flight recorders, counters of loops, bytes, functions. A log
that is silent is no hang, and a log that is not is no progress. The job is looked at every quarter of the given time,
at most every 15 seconds, and is not touched in between. The watch ends with the job.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from types import FrameType

import msgspec

from breakranks.backend.job_backend import Backend
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import FOUND, OK
from breakranks.cli.progress_line import ProgressLine
from breakranks.errors import BreakranksError, SnapshotError, UsageError
from breakranks.explain.meanings_file import read_meanings
from breakranks.jobs.targets import DumpFolder, SnapshotFile, parse_target
from breakranks.run.hang_command import run_hang_command
from breakranks.run.hang_guard import MAX_HANG_SECONDS, MIN_HANG_SECONDS
from breakranks.run.hang_watch import (
    HangFound,
    HangWatch,
    JobFound,
    JobNotSeen,
    LookTaken,
    ProgressResumed,
    WatchEnded,
    WatchEvent,
)
from breakranks.run.watched_job import WatchedJob
from breakranks.show.json_output import Object, why_json
from breakranks.show.quantities import duration, plural
from breakranks.show.terminal_text import Line, TerminalStyle, clean, render
from breakranks.show.verdict_lines import why_lines
from breakranks.show.wording.finding_wording import summary
from breakranks.snapshot.snapshot_file import check_place, printable, save

EXAMPLES = """
breakranks watch --on-hang 300                      the job on this machine
breakranks watch slurm:2180718 --on-hang 300 --save hangs/
                                                    a Slurm job; save a snapshot of each hang
breakranks watch --on-hang 600 --then kill          end the job when it hangs
breakranks watch --on-hang 300 --exec 'mail -s "job hangs" me@example.org'
                                                    send the verdict by mail
breakranks watch --on-hang 60 --wait 600            wait up to ten minutes for a job to appear
"""
DEFAULT_HANG_SECONDS = 300.0  # half of the shortest default timeout of torch's process groups
_MAX_WAIT_SECONDS = 30 * 86400.0
_PLAIN = TerminalStyle()


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target_args.LIVE)
    parser.add_argument("--job", metavar="KEY", help="the job, if there are several: its key or the start of its key")
    parser.add_argument(
        "--on-hang",
        metavar="SECONDS",
        type=float,
        default=DEFAULT_HANG_SECONDS,
        help=f"report when no rank has made progress for this long (default: {DEFAULT_HANG_SECONDS:g})",
    )
    parser.add_argument("--save", metavar="DIR", help="save a snapshot of each hang in this folder: KEY-TIME.brk")
    parser.add_argument(
        "--then",
        choices=("keep", "kill"),
        default="keep",
        help="keep watching after a hang was reported, or kill the job: SIGTERM, then SIGKILL (default: keep)",
    )
    parser.add_argument(
        "--exec",
        metavar="CMD",
        help="run this shell command for each hang, with the verdict on its standard input",
    )
    parser.add_argument("--once", action="store_true", help="exit after the first report")
    parser.add_argument(
        "--wait", metavar="S", type=float, default=0.0, help="seconds to wait for a job to appear (default: 0)"
    )
    parser.add_argument(
        "--below",
        metavar="PID",
        type=int,
        default=0,
        help="watch the job that this process has started, wait until it has ranks, and exit when the process ends",
    )
    parser.add_argument("--no-native", action="store_true", help="do not read C frames for the verdict")
    target_args.add_no_inject(
        parser, "do not run code inside the ranks; the numbers of their calls and steps then do not count as progress"
    )
    parser.add_argument("--meanings", metavar="FILE", help="TOML file with the meanings of frames of your own code")
    target_args.add_reach(parser)
    target_args.add_output(parser, full="print whole stacks and paths")


def run(args: argparse.Namespace) -> int:
    _check(args)
    target = parse_target(args.target)
    if isinstance(target, DumpFolder | SnapshotFile):
        raise UsageError(f"only a running job can be watched, which {args.target} is not", "See: breakranks why FILE")

    def open_backend() -> Backend:
        return job_selection.backend_of(target, args)

    watch = HangWatch(
        WatchedJob(open_backend, args.job, below=args.below),
        seconds=args.on_hang,
        wait=args.wait,
        below=args.below,
        inject=not args.no_inject,
        native=not args.no_native,
        table=read_meanings(args.meanings),
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    return _Reporter(watch, args).run()


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that cannot work, before the job is watched for hours."""
    if not MIN_HANG_SECONDS <= args.on_hang <= MAX_HANG_SECONDS:
        raise UsageError(
            f"--on-hang {args.on_hang:g} is out of range", f"Give {MIN_HANG_SECONDS:g} to {MAX_HANG_SECONDS:g} seconds."
        )
    if not 0 <= args.wait <= _MAX_WAIT_SECONDS:
        raise UsageError(f"--wait {args.wait:g} is out of range", f"Give 0 to {_MAX_WAIT_SECONDS:g} seconds.")
    if args.below < 0 or (args.below and args.target not in (None, "local")):
        raise UsageError("--below names a process of this machine", "Omit the target, and give a process id.")
    if args.save:
        try:
            os.makedirs(args.save, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--save {args.save}: {error.strerror}", "Name a folder that can be written to."
            ) from error
        check_place(os.path.join(args.save, "job.brk"))


class _Reporter:
    """Prints what a watch finds, saves it, runs the command, ends the job."""

    def __init__(self, watch: HangWatch, args: argparse.Namespace) -> None:
        self._watch = watch
        self._args = args
        self._status = ProgressLine()
        self._hung = False
        self._unseen = ""

    def run(self) -> int:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(line_buffering=True)
        events = self._watch.events()
        try:
            for event in events:
                if isinstance(event, HangFound):
                    self._hung = True
                    self._report(event)
                    if self._args.then == "kill":
                        self._kill(event)
                        return FOUND
                    if self._args.once:
                        return FOUND
                else:
                    self._tell(event)
        finally:
            self._status.done()
            events.close()
        return FOUND if self._hung else OK

    # ---- what is told

    def _tell(self, event: WatchEvent) -> None:
        if isinstance(event, LookTaken):
            self._unseen = ""
            self._status(_status_text(self._watch.job.name, event))
        elif isinstance(event, JobFound):
            self._status(f"watching {event.key}: {plural(event.ranks, 'rank')}")
        elif isinstance(event, JobNotSeen):
            self._not_seen(event.error)
        elif isinstance(event, ProgressResumed):
            self._say({"event": "progress"}, "the job makes progress again")
        elif isinstance(event, WatchEnded):
            self._say({"event": "ended", "job": self._watch.job.name}, "the job has ended")

    def _not_seen(self, error: BreakranksError) -> None:
        """Tell once why a job that was seen before cannot be looked at. Before, waiting for it is normal."""
        self._status("waiting for a job" if not self._watch.job.name else f"not seen: {error.message}")
        if self._watch.job.name and error.message != self._unseen:
            self._unseen = error.message
            self._warn(f"the job cannot be seen now: {error.message}")

    def _say(self, event: Object, text: str) -> None:
        self._status.done()
        if self._args.json:
            _write_json(event)
        else:
            print(text, flush=True)

    def _warn(self, text: str) -> None:
        self._status.done()
        lines = "\n".join(clean(line) for line in text.split("\n"))
        sys.stderr.write(f"breakranks: {lines}\n")
        sys.stderr.flush()

    # ---- a hang

    def _report(self, hang: HangFound) -> None:
        self._status.done()
        path = self._saved(hang)
        if self._args.json:
            _write_json(_hang_json(hang, path))
        else:
            look = terminal_output.look(self._args)
            terminal_output.show(_hang_lines(hang, path, look), look)
            sys.stdout.flush()
        if self._args.exec:
            self._execute(hang, path)

    def _saved(self, hang: HangFound) -> str:
        """Save the snapshot, if wanted, and return its path. A full disk does not end the watch."""
        if not self._args.save:
            return ""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(hang.snapshot.time))
        key = "".join(c if c.isalnum() or c in "-_." else "_" for c in hang.snapshot.job.key).lstrip(".") or "job"
        path = os.path.join(self._args.save, f"{key}-{stamp}.brk")
        try:
            save(hang.snapshot, path)
        except SnapshotError as error:
            self._warn(f"the snapshot was not saved: {error.message}")
            return ""
        return path

    def _execute(self, hang: HangFound, path: str) -> None:
        if self._args.json:
            text = _json_text(_hang_json(hang, path))
        else:
            text = render(_hang_lines(hang, path, _PLAIN), _PLAIN)
        failed = run_hang_command(self._args.exec, text, _variables(hang, path))
        if failed:
            self._warn(f"the command of --exec {failed}: {self._args.exec}")

    def _kill(self, hang: HangFound) -> None:
        self._status("ending the job")
        left = self._watch.job.end(hang.snapshot)
        self._say({"event": "killed", "job": hang.snapshot.job.key, "left": left}, _killed_text(left))


def _status_text(key: str, look: LookTaken) -> str:
    found = look.diagnosis.verdict or look.diagnosis.pending
    ranks = plural(len(look.snapshot.ranks), "rank")
    if not look.standing:
        return f"watching {key}: {ranks}, making progress"
    what = f": {summary(found)}" if found is not None else ""
    return f"watching {key}: {ranks}, no progress for {duration(look.standing)}{what}"


def _killed_text(left: list[str]) -> str:
    return f"the job was killed; still there: {', '.join(left)}" if left else "the job was killed"


def _hang_lines(hang: HangFound, path: str, look: TerminalStyle) -> list[Line]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(hang.snapshot.time))
    cause = "" if hang.known else "; the cause is not known"
    lines: list[Line] = [
        ((f"{at}  no rank has made progress for {duration(hang.seconds)}{cause}", "bold"),),
        (),
        *why_lines(hang.snapshot, hang.diagnosis, look),
    ]
    if path:
        lines += [(), (f"saved: {path}",)]
    return [*lines, ()]


def _hang_json(hang: HangFound, path: str) -> Object:
    return {
        "event": "hang",
        "seconds": round(hang.seconds, 1),
        "since": hang.since,
        "snapshot": path,
        **why_json(hang.snapshot, hang.diagnosis),
    }


def _json_text(event: Object) -> str:
    """Return an event as one line."""
    try:
        return msgspec.json.encode(event).decode() + "\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(printable(event)).decode() + "\n"


def _write_json(event: Object) -> None:
    sys.stdout.write(_json_text(event))
    sys.stdout.flush()


def _variables(hang: HangFound, path: str) -> dict[str, str]:
    """Return the environment variables for the command. None of them is an option of breakranks."""
    verdict = hang.diagnosis.verdict
    return {
        "BREAKRANKS_HANG_JOB": hang.snapshot.job.key,
        "BREAKRANKS_HANG_SECONDS": f"{hang.seconds:.0f}",
        "BREAKRANKS_HANG_KIND": verdict.kind if verdict is not None else "unknown",
        "BREAKRANKS_HANG_CULPRITS": verdict.culprits if verdict is not None else "",
        "BREAKRANKS_HANG_VICTIMS": verdict.victims if verdict is not None else "",
        "BREAKRANKS_HANG_SUMMARY": clean(summary(verdict)) if verdict is not None else "",
        "BREAKRANKS_HANG_SNAPSHOT": os.path.abspath(path) if path else "",
    }


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
