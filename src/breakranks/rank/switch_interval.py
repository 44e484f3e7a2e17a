"""Shortens Python's switch interval, so that the agent gets the GIL from a busy job.

A thread that waits for the GIL requests it after the switch interval; if the GIL was released since, the wait starts
again. A job thread that makes short system calls, as a loop of small tensors does, releases the GIL and has it back
before another thread has woken up: others may wait for seconds. So the interval is short while a console sends
commands, and is restored soon after, because it slows down threads that all compute in Python.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from breakranks.rank import fork_hooks

_INTERVAL_SECONDS = 1e-5
_LASTS_SECONDS = 3.0  # after the last command of a console


class SwitchInterval:
    """Called by the agent's thread only."""

    def __init__(self) -> None:
        self._own = 0.0  # the interval of the job, while it is replaced
        self._until = 0.0

    def begin(self, now: float) -> None:
        self._until = now + _LASTS_SECONDS
        interval = sys.getswitchinterval()
        if interval > _INTERVAL_SECONDS:  # else injected code has shortened it, and will restore it
            self._own = interval
            fork_hooks.state()["interval"] = interval
            sys.setswitchinterval(_INTERVAL_SECONDS)

    def look(self, now: float) -> None:
        if self._own and now > self._until:
            self.end()

    def end(self) -> None:
        """Restore the interval of the job."""
        self.ending()()

    def ending(self) -> Callable[[], object]:
        """Return a function that restores the interval, unless the job has changed it. It works after the unload."""
        own, self._own = self._own, 0.0
        shortened = own and sys.getswitchinterval() <= _INTERVAL_SECONDS
        return functools.partial(_restore, own, fork_hooks.state(), sys.setswitchinterval) if shortened else int


def _restore(own: float, at_fork: dict[str, Any], change: Callable[[float], None]) -> None:
    """Uses no global: the module may be unloaded."""
    change(own)
    at_fork["interval"] = 0.0


def wake_on_time() -> None:
    """Make timers of this thread, and of threads that it starts, precise: the kernel does not coalesce them."""
    try:
        with open(f"/proc/{threading.get_native_id()}/timerslack_ns", "w") as file:
            file.write("1")
    except OSError:
        pass
