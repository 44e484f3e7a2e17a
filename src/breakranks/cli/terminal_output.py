"""Standard output of a command."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from breakranks.show.terminal_text import Line, TerminalStyle, look_of, render


def look(args: argparse.Namespace) -> TerminalStyle:
    """Return how to write to standard output, from its terminal and the options."""
    return look_of(sys.stdout, args.color, full=getattr(args, "full", False), now=time.time())


def show(lines: Iterable[Line], look: TerminalStyle) -> None:
    """Write lines to standard output."""
    sys.stdout.write(render(lines, look))
