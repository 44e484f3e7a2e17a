"""Know when this machine stood still, the disk or all of it: what was asked meanwhile is asked again.

Whatever has a deadline of its own (a host that is to answer, a group of torch, a rank that is judged by when it last
ran) says nothing about our code after ten seconds in which nobody could run.
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
    """What was asked again since the last call, for the report of the test."""
    taken = _repetitions.copy()
    _repetitions.clear()
    return taken


class Pulse:
    """A thread that runs and writes to the disk again and again. ``stopped`` if it could not for a while."""

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
    """What ``ask`` gives, or fails with, when nothing stood still meanwhile. The last time counts in any case."""
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
