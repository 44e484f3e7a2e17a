"""How soon a thread of ours gets the GIL from a job that is busy.

Whoever waits for the GIL asks for it after the switch interval, unless it was let go of meanwhile: then the wait begins
anew. A thread that makes a short system call now and then, as a loop of small tensors does, has the GIL back before
another has woken up, and never keeps it for a whole interval: others may wait for seconds. So the interval is made
short while a console talks to us, and given back soon after: threads that all compute in Python lose by it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from breakranks.rank import fork_hooks

_INTERVAL_SECONDS = 1e-5
_LASTS_SECONDS = 3.0  # seconds after the last word of a console


class SwitchInterval:
    """Called by the agent's thread only."""

    def __init__(self) -> None:
        self._own = 0.0  # the job's interval, while it is not in force
        self._until = 0.0

    def begin(self, now: float) -> None:
        self._until = now + _LASTS_SECONDS
        interval = sys.getswitchinterval()
        if interval > _INTERVAL_SECONDS:  # not: somebody who asks has made it short, and gives it back
            self._own = interval
            fork_hooks.state()["interval"] = interval
            sys.setswitchinterval(_INTERVAL_SECONDS)

    def look(self, now: float) -> None:
        if self._own and now > self._until:
            self.end()

    def end(self) -> None:
        """The job has its own again."""
        self.ending()()

    def ending(self) -> Callable[[], object]:
        """What gives the job its own again, unless it has set another meanwhile. It needs nothing of ours to do so."""
        own, self._own = self._own, 0.0
        ours = own and sys.getswitchinterval() <= _INTERVAL_SECONDS
        return functools.partial(_give_back, own, fork_hooks.state(), sys.setswitchinterval) if ours else int


def _give_back(own: float, at_fork: dict[str, Any], change: Callable[[float], None]) -> None:
    """Uses no global: those may be gone by now."""
    change(own)
    at_fork["interval"] = 0.0


def wake_on_time() -> None:
    """Timers of this thread, and of those that it starts, are not put off to be joined with others."""
    try:
        with open(f"/proc/{threading.get_native_id()}/timerslack_ns", "w") as file:
            file.write("1")
    except OSError:
        pass
