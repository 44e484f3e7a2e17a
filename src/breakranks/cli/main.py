"""The entry point: choose a command, run it, and turn every error into a message and an exit status.

A command is a module with a docstring (its description), ``EXAMPLES`` (lines for ``--help``), ``configure(parser)`` and
``run(args) -> int``. Only the chosen module is imported, because start-up time delays the answer.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import gc
import importlib
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType

from breakranks import __version__
from breakranks.cli.config import fill
from breakranks.cli.exit_status import FAILED, OK, status_text
from breakranks.errors import BreakranksError, UsageError
from breakranks.log import Log, configure, milliseconds
from breakranks.observe.redaction import redact

COMMANDS = {
    "why": ("breakranks.cli.why", "why a job hangs: which rank, where, and what to do"),
    "collectives": (
        "breakranks.cli.collectives",
        "which collective the ranks of each group are at, and which are behind",
    ),
    "ps": ("breakranks.cli.ps", "the jobs on this machine and their ranks"),
    "stacks": ("breakranks.cli.stacks", "what every rank is doing, folded into one tree"),
    "top": ("breakranks.cli.top", "what every rank is doing, live: which ranks make progress and which do not"),
    "console": ("breakranks.cli.console", "one prompt over the ranks that stopped at breakranks.breakpoint()"),
    "attach": ("breakranks.cli.attach", "inspect, stop and step the ranks of a running job, without preparation"),
    "eval": ("breakranks.cli.eval", "evaluate an expression in running ranks"),
    "probe": ("breakranks.cli.probe", "print expressions each time a rank executes FILE:LINE, without stopping it"),
    "logs": ("breakranks.cli.logs", "read logs: the first cause, by rank, and what followed from it"),
    "snapshot": ("breakranks.cli.snapshot", "save the evidence of a job (stacks, states, files, locks) to one file"),
    "hosts": ("breakranks.cli.hosts", "check each host: login, Python, processes, ranks, stacks"),
    "run": ("breakranks.cli.run", "start a job: output by rank, first cause at the end"),
    "watch": ("breakranks.cli.watch", "watch a running job, and report when it hangs"),
    "demo": ("breakranks.cli.demo", "start a small job that hangs, and explain it"),
}
COLLECTOR_THRESHOLDS = (100_000, 50, 100)
VERBOSE = ("-v", "--verbose")
STATUS = "exit status: 0 no problem found, 1 a problem found, 2 breakranks failed; see breakranks COMMAND --help"

_log = Log("cli")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

HELP = """\
usage: breakranks COMMAND [TARGET] [options]

Find the rank that the others wait for, and why. The job needs no preparation.

commands:
{commands}

TARGET is where the job is: local (this machine, the default), pid:123,124 (these processes), hosts (ssh:n[1-4],
pdsh:n[1-4], slurm:JOBID, mpi:HOSTFILE, exec:COMMAND@HOSTS), a file made with `breakranks snapshot`, or a folder of
flight recorder dumps.

examples:
  breakranks why                   explain the job that hangs on this machine
  breakranks stacks --rank 0-3     what four ranks are doing
  breakranks why slurm:2180718     explain a Slurm job, on all its hosts
  breakranks -v why ssh:n[1-4]     and log to standard error what breakranks runs and asks; -vv logs more
  breakranks COMMAND --help        options and examples of one command

BREAKRANKS_LOG=FILE appends the log of -vv to a file.

{status}
"""


def entry() -> None:
    """Run the console script."""
    status = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
    # Finalizing the interpreter would take longer than showing a job.
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status. A user's mistake never raises."""
    words = list(sys.argv[1:] if argv is None else argv)
    began = time.monotonic()
    # Evidence is a million small objects that stay alive. With the default thresholds, collection takes half the time.
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    if sys.stdout is None:  # closed by the caller: >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A character that the encoding lacks is replaced instead of raising an exception.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        status = _dispatch(words)
        sys.stdout.flush()
    except BreakranksError as error:
        _log.info("ended", status=2, why=error.message, ms=milliseconds(began))
        return _complain(error.message, error.help)
    except KeyboardInterrupt:
        _log.info("ended by Ctrl-C", status=130, ms=milliseconds(began))
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader has exited: | head
        return 141
    except Exception as error:
        _log.info("ended", status=2, why=f"{type(error).__name__}: {error}", ms=milliseconds(began))
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            _drop_output()
            return _complain(f"cannot write the output: {error.strerror}", "Check whether the disk is full.")
        if os.environ.get("BREAKRANKS_DEBUG", "") not in ("", "0"):
            raise
        return _complain(
            f"unexpected {type(error).__name__}: {error}",
            "This is a bug of breakranks, not of your job. Please report it with the output of:\n"
            "  BREAKRANKS_DEBUG=1 breakranks " + " ".join(words),
        )
    _log.info("ended", status=status, ms=milliseconds(began))
    return status


def _dispatch(words: list[str]) -> int:
    verbose = 0
    while words and (count := _verbosity(words[0])):
        verbose += count
        words = words[1:]
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help"):
        rows = "\n".join(f"  {name:<12} {summary}" for name, (_, summary) in COMMANDS.items())
        (sys.stdout if words else sys.stderr).write(HELP.format(commands=rows, status=STATUS))
        return OK if words else FAILED
    if words[0] in ("-V", "--version"):
        print(f"breakranks {__version__}")
        return OK
    name = words[0]
    if name not in COMMANDS:
        raise UsageError(f"unknown command {name!r}", _suggestion(name))
    module = importlib.import_module(COMMANDS[name][0])
    parser = parser_of(name, module)
    # Intermixed: the target is optional, and options may come between it and the next argument. The words of a user's
    # command are left alone.
    parse = parser.parse_args if getattr(module, "TAKES_COMMAND", False) else parser.parse_intermixed_args
    args = parse(words[1:])
    _start_log(verbose + args.verbose, words)
    fill(args)
    status: int = module.run(args)
    return status


def parser_of(name: str, module: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of one command, with its description, examples and exit statuses."""
    examples = "".join(f"  {line}\n" for line in module.EXAMPLES.strip().splitlines())
    parser = argparse.ArgumentParser(
        prog=f"breakranks {name}",
        description=(module.__doc__ or "").strip(),
        epilog=f"examples:\n{examples}\n{status_text(name)}",
        # With a given width, argparse does not import shutil to find one on every command line.
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_help_width()),
        allow_abbrev=False,
    )
    module.configure(parser)
    parser.add_argument(
        *VERBOSE,
        action="count",
        default=0,
        help="log to standard error what is run, asked and refused, and how long it takes; -vv logs more",
    )
    return parser


def _verbosity(word: str) -> int:
    """Return how often a word has -v: 2 for -vv, 0 for any other word."""
    if word in VERBOSE:
        return 1
    return len(word) - 1 if word.startswith("-v") and not word.strip("-v") else 0


def _start_log(verbose: int, words: list[str]) -> None:
    path = os.environ.get("BREAKRANKS_LOG", "")
    if verbose > 0 or path:
        configure(verbose, path, redact)
        python = ".".join(map(str, sys.version_info[:3]))
        _log.info("command", argv=["breakranks", *words], version=__version__, python=python, uid=os.geteuid())


def _help_width() -> int:
    try:
        return max(40, min(110, os.get_terminal_size(sys.stdout.fileno()).columns - 2))
    except (OSError, ValueError, AttributeError):
        return 100


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, 1)
    return f"Did you mean: breakranks {close[0]}" if close else f"Commands: {', '.join(COMMANDS)}."


def _drop_output() -> None:
    """Python flushes again at exit, and would report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, help: str) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        pass
    lines = [*f"breakranks: {message}".split("\n"), *(f"  {line}" for line in help.split("\n") if line)]
    # Process names and paths are untrusted: none of their control characters may reach a terminal.
    text = "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)
    sys.stderr.write(text + "\n")
    return FAILED
