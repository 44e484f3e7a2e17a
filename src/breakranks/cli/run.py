"""Start a job, and show the output of its ranks in whole lines: [host:rank] line.

COMMAND is any launcher's command line, unchanged: torchrun, accelerate, deepspeed, mpirun, srun, msrun, python, or a
script that calls one. The output of each rank is in a file of its own in the log folder. The job does not depend on
breakranks: if it is killed, the job goes on, and its log is whole.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from breakranks.cli import target_args
from breakranks.cli.exit_status import OK
from breakranks.errors import BreakranksError, UsageError
from breakranks.jobs.launchers import launcher_of
from breakranks.rankset import MAX_RANK, RankSet
from breakranks.run.command_process import CommandProcess, check_command
from breakranks.run.hang_guard import KEEP, KILL, MAX_HANG_SECONDS, MIN_HANG_SECONDS, HangGuard, HangOptions
from breakranks.run.job_output import JobOutput, OutputOptions
from breakranks.run.output_prefix import FIELDS, LinePrefix
from breakranks.run.output_printer import OutputPrinter, standard_descriptors
from breakranks.run.rank_heartbeat import RankHeartbeat
from breakranks.run.rank_registry import RankRegistry
from breakranks.run.run_folder import DEFAULT_LOG_DIR, RunFolder, create_run_folder
from breakranks.run.run_session import RunAbandonedError, RunSession, TerminalModes
from breakranks.run.run_signals import SignalQueue
from breakranks.run.startup_folder import StartupOptions, launch_environment, write_startup_folder
from breakranks.show.terminal_text import look_of, render, wants_color

EXAMPLES = """
breakranks run -- torchrun --nproc-per-node 8 train.py     show the output by rank; keep it in breakranks-logs
breakranks run --fold --only 0-3 -- srun -n 64 ./train     four ranks, equal lines only once
breakranks run --prefix '{time} {rank}: ' -- ./train.sh    a prefix of your own
breakranks run --debug-rank 1 -- torchrun train.py         give this terminal to rank 1, for pdb
breakranks run --on-hang 300 -- srun -n 64 ./train         explain a hang before the timeout of the job ends it
breakranks run --report crash.json -- ./train.sh           the first cause of a failure as JSON
"""
TAKES_COMMAND = True  # everything from the first word that is no option belongs to the user's command
DEFAULT_KEEP_FREE = "64M"
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?\Z", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "breakranks run [options] -- COMMAND"
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="the command line of a launcher")
    fields = " ".join(f"{{{name}}}" for name in FIELDS)
    parser.add_argument("--prefix", metavar="TEMPLATE", help=f"text before each line, with the fields {fields}")
    parser.add_argument("--fold", action="store_true", help="print equal lines of several ranks once: [0-3] line")
    parser.add_argument("--only", metavar="SET", help="show only these ranks: 3, 0-7, 0,4-6, 0-31/8")
    parser.add_argument("--quiet", action="store_true", help="show no output of the job; it is in the log folder")
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        default=DEFAULT_LOG_DIR,
        help=f"where each run gets a folder for its logs (default: {DEFAULT_LOG_DIR})",
    )
    parser.add_argument(
        "--debug-rank", metavar="R", help="give this terminal to rank R, for pdb; the others print only to their files"
    )
    parser.add_argument(
        "--on-crash",
        choices=("keep", "post-mortem"),
        help="at an uncaught exception: keep the rank for `breakranks attach`, or open pdb in it",
    )
    parser.add_argument(
        "--on-hang", metavar="SECONDS", type=float, help="explain the job when no rank makes progress for this long"
    )
    parser.add_argument(
        "--then", choices=(KEEP, KILL), default=KEEP, help="after a hang was explained: keep the job, or kill it"
    )
    parser.add_argument("--exec", metavar="CMD", help="shell command for each hang, with the verdict on its input")
    parser.add_argument("--save", metavar="DIR", help="where snapshots of hangs are saved (default: the log folder)")
    parser.add_argument(
        "--target", metavar="TARGET", help="how --on-hang reaches ranks on other hosts (default: slurm:JOBID, or ssh)"
    )
    parser.add_argument(
        "--sync-cuda",
        action="store_true",
        help="CUDA_LAUNCH_BLOCKING=1: a CUDA error is raised by the call that fails; the job is slower",
    )
    parser.add_argument("--report", metavar="FILE", help="write the report of the end as JSON")
    parser.add_argument("--no-agent", action="store_true", help="do not load the agent of breakranks in the ranks")
    parser.add_argument(
        "--keep-free",
        metavar="SIZE",
        default=DEFAULT_KEEP_FREE,
        help="when the disk of the logs has less room, ranks print to the launcher again (default: 64M)",
    )
    target_args.add_output(parser, json=False)


def run(args: argparse.Namespace) -> int:
    command = _command(args)
    began = time.time()
    options = _output_options(args)
    prefix = LinePrefix(args.prefix, color=wants_color(args.color, sys.stdout.isatty(), os.environ))
    keep_free_bytes = size_of(args.keep_free)
    terminal = _terminal(options)
    hang = _hang_options(args)
    _check_report(args.report)
    check_command(command, os.environ)
    folder = create_run_folder(Path(args.log_dir), keep_free_bytes)
    environ = _environment(args, folder, terminal, keep_free_bytes)
    with ExitStack() as stack:
        stack.enter_context(TerminalModes(sys.stdin.fileno()) if terminal else nullcontext())
        signals = stack.enter_context(SignalQueue())
        process = stack.enter_context(_started(command, folder, environ, own_session=bool(terminal)))
        _announce(args, folder)
        session = _session(folder, process, signals, prefix, options)
        session.hooks += [RankHeartbeat()] if args.on_crash else []
        guard = stack.enter_context(HangGuard(hang, folder)) if hang is not None else None
        session.hooks += [guard] if guard is not None else []
        status = session.run()
    _note_missing_ranks(session, status)
    try:
        _report(args, session, status, began, guard)
    except (BreakranksError, BrokenPipeError):
        raise
    except Exception as error:  # the exit status stays that of the command
        print(f"breakranks: no report of the end: {type(error).__name__}: {error}", file=sys.stderr)
    return status


def _report(args: argparse.Namespace, session: RunSession, status: int, began: float, guard: HangGuard | None) -> None:
    """Print why the job failed, unless the user ended it or its hang was explained, and write the report."""
    was_killed = guard is not None and guard.has_killed
    is_shown = status != OK and not session.was_interrupted and not was_killed
    if not is_shown and not args.report:
        return
    # The readers of logs, and msgspec: a job that ends well needs none of it.
    from breakranks.run.job_report import hang_verdict, job_report
    from breakranks.show.crash_json import report_json, with_verdict
    from breakranks.show.crash_lines import report_lines
    from breakranks.show.json_output import to_text

    command = session.command
    report = job_report(session.folder, session.registry, list(command.command), command.pid, status, began)
    if args.report:
        verdict = hang_verdict(guard.snapshots) if guard is not None and was_killed else None
        found = report_json(report)
        _write_report(args.report, to_text(found if verdict is None else with_verdict(found, verdict)))
    if is_shown:
        style = look_of(sys.stderr, args.color)
        print(f"\nbreakranks: the command ended with status {status}", file=sys.stderr)
        sys.stderr.write(render(report_lines(report, style), style))
        sys.stderr.flush()


def _check_report(path: str | None) -> None:
    """Raise UsageError for a report that cannot be written, before the job runs for hours."""
    if path and (os.path.isdir(path) or not os.access(os.path.dirname(path) or ".", os.W_OK)):
        raise UsageError(f"--report {path} cannot be written", "Name a file in a folder that you can write to.")


def _write_report(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"breakranks: the report was not written to {path}: {error.strerror}", file=sys.stderr)


def _hang_options(args: argparse.Namespace) -> HangOptions | None:
    if args.on_hang is None:
        if args.exec or args.save or args.target or args.then != KEEP:
            raise UsageError("--then, --exec, --save and --target belong to --on-hang", "Add: --on-hang 300")
        return None
    if not MIN_HANG_SECONDS <= args.on_hang <= MAX_HANG_SECONDS:
        raise UsageError(
            f"--on-hang {args.on_hang:g} is out of range",
            f"Give {MIN_HANG_SECONDS:g} to {MAX_HANG_SECONDS:g} seconds.",
        )
    return HangOptions(
        seconds=args.on_hang,
        save=args.save or "",
        then=args.then,
        execute=args.exec or "",
        target=args.target or "",
    )


@contextmanager
def _started(
    command: list[str], folder: RunFolder, environ: Mapping[str, str], *, own_session: bool
) -> Iterator[CommandProcess]:
    """Start the command. It ends if breakranks fails, and goes on after the third Ctrl-C."""
    process = CommandProcess(command, folder, environ, own_session=own_session)
    abandoned = False
    with process:
        try:
            yield process
        except RunAbandonedError:
            abandoned = True
    if abandoned:
        if process.poll() is None:
            print(f"\nbreakranks: the command still runs, as process {process.pid}", file=sys.stderr)
        raise KeyboardInterrupt


def _command(args: argparse.Namespace) -> list[str]:
    command: list[str] = args.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command or not command[0]:
        raise UsageError("no command to run", "For example: breakranks run -- torchrun --nproc-per-node 2 train.py")
    return command


def _output_options(args: argparse.Namespace) -> OutputOptions:
    return OutputOptions(
        fold=args.fold,
        only=RankSet.parse(args.only) if args.only is not None else None,
        quiet=args.quiet,
        debug_rank=_rank(args.debug_rank),
    )


def _rank(text: str | None) -> int:
    if text is None:
        return -1
    if not (text.isascii() and text.isdigit()) or int(text[:9]) > MAX_RANK:
        raise UsageError(f"--debug-rank {text!r} is not a rank", "It takes one rank, such as --debug-rank 0.")
    return int(text)


def size_of(text: str) -> int:
    """Return a size in bytes: ``0``, ``512K``, ``64M``, ``2GiB``."""
    match = _SIZE.match(text.strip())
    if match is None:
        raise UsageError(f"--keep-free {text!r} is not a size", "For example: --keep-free 1G, or 0 for no limit.")
    return int(match[1]) << _UNITS[match[2].upper()]


def _terminal(options: OutputOptions) -> str:
    """Return the path of the terminal for the rank of ``--debug-rank``."""
    if options.debug_rank < 0:
        return ""
    try:
        return os.ttyname(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(
            "--debug-rank needs a terminal, and standard input is not one",
            "Start breakranks in a terminal, without a pipe or file as its input. Without one: breakranks attach",
        ) from error


def _environment(args: argparse.Namespace, folder: RunFolder, terminal: str, keep_free_bytes: int) -> dict[str, str]:
    startup = write_startup_folder(
        StartupOptions(
            token=uuid.uuid4().hex,
            run_folder=str(folder.path),
            debug_rank=_rank(args.debug_rank),
            terminal=terminal,
            on_crash=args.on_crash or "",
            preload_agent=not args.no_agent,
            keep_free_bytes=keep_free_bytes,
        )
    )
    switches = {"CUDA_LAUNCH_BLOCKING": "1"} if args.sync_cuda else {}
    return launch_environment(startup, {**os.environ, **switches})


def _session(
    folder: RunFolder, process: CommandProcess, signals: SignalQueue, prefix: LinePrefix, options: OutputOptions
) -> RunSession:
    registry = RankRegistry(folder)
    printer = OutputPrinter(*standard_descriptors())
    output = JobOutput(folder, registry, printer, prefix, options)
    return RunSession(folder, registry, process, output, signals, debug_rank=options.debug_rank)


def _note_missing_ranks(session: RunSession, status: int) -> None:
    """A launcher that has started no rank of Python is no error, but its output could not be shown by rank."""
    if status == OK and not session.registry.registrations and launcher_of(session.command.command) is not None:
        print(
            "breakranks: no rank was seen, so no output was shown by rank. Does the job replace PYTHONPATH, or start"
            " Python with -E, -I or -S?",
            file=sys.stderr,
        )


def _announce(args: argparse.Namespace, folder: RunFolder) -> None:
    shown = os.path.join(args.log_dir, folder.path.name)
    print(f"breakranks: the output of each rank is in {shown}", file=sys.stderr, flush=True)
    if args.sync_cuda:
        print(
            "breakranks: CUDA_LAUNCH_BLOCKING=1: each CUDA call waits for its kernel. The job is slower",
            file=sys.stderr,
            flush=True,
        )
