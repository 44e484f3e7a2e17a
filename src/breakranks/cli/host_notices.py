"""What is said on a terminal while hosts are waited for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from breakranks.cli.progress_line import ProgressLine
from breakranks.cli.terminal_output import look, show
from breakranks.hosts.transports import LostHost


class TerminalNotices:
    """One line on a terminal, replaced as things go on; elsewhere it is said once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._line = ProgressLine()
        self._said = False

    def progress(self, waiting: str, answered: int, total: int) -> None:
        text = f"{answered} of {total} hosts have answered; waiting for {waiting}"
        if sys.stderr.isatty():
            self._line(text)
        elif not self._said:
            self._said = True
            sys.stderr.write(f"breakranks: {text}\n")

    def done(self) -> None:
        self._line.done()

    def late(self, hosts: str) -> None:
        sys.stdout.flush()
        sys.stderr.write(f"breakranks: waiting for {hosts}; Ctrl-C leaves it at that\n")

    def arrived(self, hosts: str) -> None:
        print(f"\n{hosts} has answered since; with it:\n")

    def lost(self, reasons: Iterable[tuple[str, LostHost]]) -> None:
        how = look(self._args)
        for hosts, lost in reasons:
            show([[(hosts, "rank"), f": {lost.what}"], *(["  ", line] for line in lost.remedy.splitlines())], how)
