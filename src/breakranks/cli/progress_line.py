"""One line on the terminal that tells what a command is waiting for."""

from __future__ import annotations

import sys

from breakranks.explain.diagnosis import Diagnosis
from breakranks.show.wording.finding_wording import summary


class ProgressLine:
    """A line on standard error that each call replaces. Without a terminal it prints nothing."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._shown = False

    def __call__(self, text: str) -> None:
        if self._tty:
            sys.stderr.write(f"\r\x1b[K{text[:100]}")
            sys.stderr.flush()
            self._shown = True

    def watching(self, seconds: float, diagnosis: Diagnosis) -> None:
        """Tell for how many seconds sampling continues, and why."""
        found = diagnosis.verdict or diagnosis.pending
        self(f"watching {max(seconds, 1):.0f} s more: {summary(found) if found is not None else 'nothing found yet'}")

    def reading(self, done: int, total: int) -> None:
        """Tell how much of the logs has been read."""
        self(f"reading: {done / 1e6:,.0f} MB" + (f" of {total / 1e6:,.0f} MB" if total >= done else ""))

    def done(self) -> None:
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
