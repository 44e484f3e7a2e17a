"""What a console does besides asking: other commands on the same job, and ending it."""

from __future__ import annotations

import argparse
import sys

from breakranks.cli import terminal_output
from breakranks.cli.main import main
from breakranks.console.debug_session import DebugSession
from breakranks.errors import UsageError


def say(text: str, args: argparse.Namespace) -> None:
    if text and not args.json:
        terminal_output.show([[(text, "dim")]], terminal_output.look(args))
        sys.stdout.flush()


def elsewhere(command: str, ranks: str, session: DebugSession) -> None:
    """`why` and `stacks` of this job, as on the command line. What they find is no status of ours."""
    which = session.backend.words_for(link.found for link in session.links.values())
    main([command, *which, *(["--rank", ranks] if ranks else [])])


def kill(session: DebugSession, sure: bool, args: argparse.Namespace) -> int:
    """End the job: its launcher first, which ends the ranks as it always does, then what is left."""
    if not sure:
        if not sys.stdin.isatty():
            raise UsageError("kill-job wants a yes", "In a script: kill-job yes")
        say("not ended", args)
        return 1
    left = session.backend.end(link.found for link in session.links.values())
    say("the job has ended" if not left else f"still there: {', '.join(left)}", args)
    return 0 if not left else 2
