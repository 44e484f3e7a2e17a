"""One prompt over the ranks that stopped at `breakranks.breakpoint()`: pdb in all of them, answers folded.

Lines go to pdb in every rank of the focus, [0-3] in the prompt. `help` there lists the other commands: focus, all,
rank, ranks, go, hold, interrupt, stacks, why. When the console quits, or is killed, every held rank resumes. A script
(-c, --batch) leaves the ranks as they were.
"""

from __future__ import annotations

import argparse
import sys

from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.console_view import JsonView, TextView
from breakranks.cli.exit_status import FAILED, OK
from breakranks.cli.terminal import ConsoleTerminal
from breakranks.console.commands import Console
from breakranks.console.console_loop import Begin, ConsoleLoop, ConsoleView
from breakranks.console.console_options import ConsoleOptions
from breakranks.console.debug_session import DebugSession
from breakranks.errors import BreakranksError, UsageError
from breakranks.jobs.targets import Pids, parse_target

EXAMPLES = """
breakranks console                          the job on this machine that has stopped
breakranks console -c w -c 'all p loss'     print, and leave the ranks as they were
breakranks console -c 'p loss' -c go        print, then resume the job
breakranks console --batch ask.txt --json   commands from a file, JSON Lines as output
breakranks console pid:4242                 the job of this process
breakranks console ssh:n[1-4]               the job on these hosts
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target_args.LIVE)
    parser.add_argument(
        "--job", metavar="KEY", help="the job, if there are several: its key, the start of its key, or its port"
    )
    add_script(parser)
    parser.add_argument(
        "--wait",
        metavar="S",
        type=float,
        default=None,
        help="seconds to wait for the first rank to stop (default: no limit; in a script 60)",
    )
    parser.add_argument("--opened-by", metavar="PID", type=int, default=0, help=argparse.SUPPRESS)
    target_args.add_reach(parser)
    target_args.add_output(parser, full="cut nothing")


def add_script(parser: argparse.ArgumentParser) -> None:
    """Add ``-c``, ``--batch`` and ``--timeout``."""
    parser.add_argument(
        "-c", "--command", metavar="CMD", action="append", help="a command, as typed at the prompt; may be repeated"
    )
    parser.add_argument("--batch", metavar="FILE", help="commands from a file, one per line; - is standard input")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=60.0,
        help="seconds that a script waits for the answer of a rank (default: 60)",
    )


def run(args: argparse.Namespace) -> int:
    commands = commands_of(args)
    check_times(args)
    with job_selection.live_backend(args, "a console needs a job that runs") as backend:
        session = DebugSession(args.job, _pids(args), backend=backend)
        return run_loop(session, commands, args, wait=args.wait, opened=bool(args.opened_by))


def run_loop(
    session: DebugSession,
    commands: list[str] | None,
    args: argparse.Namespace,
    *,
    begin: Begin | None = None,
    wait: float | None = None,
    opened: bool = False,
) -> int:
    """Run the commands of a script, or those that a user types; return the exit status."""
    view: ConsoleView = JsonView() if args.json else TextView(session, terminal_output.look(args))
    if commands is None and not args.json and sys.stdin.isatty():
        with ConsoleTerminal(opened=opened) as terminal:
            options = ConsoleOptions(
                interactive=True, inspects=begin is not None, stays=not opened, pressed=terminal.pressed
            )
            console = Console(session, options)
            terminal.completing(console.complete)
            ConsoleLoop(console, view, begin=begin, wait=wait).run_prompt(terminal, opened=opened)
            return OK
    options = ConsoleOptions(interactive=False, patience=args.timeout, inspects=begin is not None)
    loop = ConsoleLoop(Console(session, options), view, begin=begin, wait=wait)
    result = loop.run_script([line.rstrip("\n") for line in sys.stdin] if commands is None else commands)
    return FAILED if result.left else int(result.failed)


def check_times(args: argparse.Namespace) -> None:
    for name in ("timeout", "wait"):
        value = getattr(args, name, None)
        if value is not None and not 0 <= value < 1e9:
            raise UsageError(f"--{name} must be a positive number of seconds", f"For example: --{name} 60")


def commands_of(args: argparse.Namespace) -> list[str] | None:
    """The commands of a script; None where the options name none."""
    if args.command and args.batch:
        raise UsageError("-c and --batch exclude each other", "Put the commands into the file, or all of them into -c.")
    if args.command:
        return list(args.command)
    if args.batch is None:
        return None
    if args.batch == "-":
        return [line.rstrip("\n") for line in sys.stdin]
    try:
        with open(args.batch, encoding="utf-8") as file:
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BreakranksError(f"cannot read {args.batch}: {error}", "It should have one command per line.") from error


def _pids(args: argparse.Namespace) -> list[int] | None:
    """The processes that the target names; None: all of the host or hosts."""
    target = parse_target(args.target)
    return list(target.pids) if isinstance(target, Pids) else None
