"""What a command is waiting for, in one line on the terminal."""

from __future__ import annotations

import sys

from breakranks.explain.diagnosis import Diagnosis
from breakranks.show.wording.finding_wording import summary


class ProgressLine:
    """One line on a terminal's stderr, replaced as things go on; silent elsewhere."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._shown = False

    def __call__(self, text: str) -> None:
        if self._tty:
            sys.stderr.write(f"\r\x1b[K{text[:100]}")
            sys.stderr.flush()
            self._shown = True

    def watching(self, seconds: float, diagnosis: Diagnosis) -> None:
        """Why another look is taken, of how many seconds."""
        pending = summary(diagnosis.pending) if diagnosis.pending is not None else ""
        self(f"watching {seconds:.0f} s more: {pending}")

    def done(self) -> None:
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
