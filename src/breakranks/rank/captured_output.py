"""Captures standard output while a command of the console runs."""

from __future__ import annotations

import threading
from typing import Any

from breakranks.rank import value_summary


class CapturedOutput:
    """The output of a command, up to a limit; the rest is counted. Output of other threads goes to its old place."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self) -> None:
        self._owner = 0  # the thread whose output it is
        self._beside: Any = None
        self._empty()

    def _empty(self) -> None:
        self._parts: list[str] = []
        self._room = value_summary.MAX_TEXT_CHARACTERS
        self._cut = 0

    def own(self, beside: Any) -> None:
        """Capture what this thread writes from now on; ``beside`` is the stream of the other threads."""
        self._owner = threading.get_ident()
        self._beside = beside

    def write(self, text: str) -> Any:
        if threading.get_ident() != self._owner and self._beside is not None:
            return self._beside.write(text)
        text = str(text)
        kept = text[: self._room]
        if kept:
            self._parts.append(kept)
            self._room -= len(kept)
        self._cut += len(text) - len(kept)
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_beside"), name)  # for the other threads: buffer, fileno, …

    def take(self) -> tuple[str, int]:
        """Return the captured text and the number of characters that were cut."""
        text, cut = "".join(self._parts), self._cut
        self._empty()
        return text, cut

    def skip(self, count: int) -> None:
        self._cut += count
