"""What a command prints while it waits for hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from breakranks.cli.progress_line import ProgressLine
from breakranks.cli.terminal_output import show
from breakranks.hosts.transports import LostHost
from breakranks.show.terminal_text import TerminalStyle


class TerminalNotices:
    """The notices of a :class:`HostsBackend`, on a terminal. Without a terminal, progress is printed once."""

    def __init__(self, look: Callable[[], TerminalStyle]) -> None:
        self._look = look
        self._line = ProgressLine()
        self._printed = False

    def progress(self, waiting: str, answered: int, total: int) -> None:
        text = f"{answered} of {total} hosts have answered; waiting for {waiting}"
        if sys.stderr.isatty():
            self._line(text)
        elif not self._printed:
            self._printed = True
            sys.stderr.write(f"breakranks: {text}\n")

    def done(self) -> None:
        self._line.done()

    def late(self, hosts: str) -> None:
        sys.stdout.flush()
        sys.stderr.write(f"breakranks: still waiting for {hosts}; Ctrl-C stops waiting\n")

    def arrived(self, hosts: str) -> None:
        print(f"\nwith {hosts}, which answered late:\n")

    def lost(self, reasons: Iterable[tuple[str, LostHost]]) -> None:
        look = self._look()
        for hosts, lost in reasons:
            show([[(hosts, "rank"), f": {lost.what}"], *(["  ", line] for line in lost.remedy.splitlines())], look)
