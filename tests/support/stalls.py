"""Notice stalls of this machine or its disk, and repeat tests that ran during a stall.

A deadline (of a host that must answer, of a group of torch, of a rank that is judged by when it last ran) proves
nothing about breakranks after ten seconds in which no process could run.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_BEAT = 0.3
_STALL = 1.5  # seconds without a beat

T = TypeVar("T")

_repetitions: list[str] = []


def take_repetitions() -> list[str]:
    """The repetitions since the last call, for the report of the test."""
    taken = _repetitions.copy()
    _repetitions.clear()
    return taken


class Pulse:
    """A thread that runs and writes to the disk at intervals. ``stopped`` if it could not for a while."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._last = time.monotonic()
        self.longest = 0.0
        self._thread = threading.Thread(target=self._beat, daemon=True, name="pulse")

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def stopped(self) -> bool:
        since = 0.0 if self._over.is_set() else time.monotonic() - self._last
        return max(self.longest, since) > _STALL

    def _beat(self) -> None:
        with tempfile.TemporaryFile() as file:
            while not self._over.wait(_BEAT):
                os.pwrite(file.fileno(), b"x", 0)
                os.fsync(file.fileno())
                now = time.monotonic()
                self.longest = max(self.longest, now - self._last)
                self._last = now


def undisturbed(ask: Callable[[], T], tries: int = 4) -> T:
    """Return the result or the failure of ``ask`` from a run without a stall. The last run counts in any case."""
    for _ in range(tries - 1):
        with Pulse() as pulse:
            try:
                answer = ask()
                if not pulse.stopped:
                    return answer
                seen = "answered"
            except Exception as error:
                if not pulse.stopped:
                    raise
                seen = f"failed, {type(error).__name__}"
        _repetitions.append(f"{seen}; longest stall {pulse.longest:.1f} s")
    return ask()
