"""Shortens Python's switch interval, so that the agent gets the GIL from a busy job.

A thread that waits for the GIL requests it after the switch interval; if the GIL was released since, the wait starts
again. A job thread that makes short system calls, as a loop of small tensors does, releases the GIL and has it back
before another thread has woken up: others may wait for seconds. So the interval is short while a console sends
commands, and is restored soon after, because it slows down threads that all compute in Python.

Several threads may need it short at once: this agent, and injected code (inject/runner.py). They share a dictionary in
``sys._breakranks_interval``: the interval of the job, and who needs it short. The last of them restores it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from breakranks.rank import fork_hooks

_INTERVAL_SECONDS = 1e-5
_LASTS_SECONDS = 3.0  # after the last command of a console
_SHARED = "_breakranks_interval"


class SwitchInterval:
    """Called by the agent's thread only."""

    def __init__(self) -> None:
        self._shared: dict[str, Any] = {}  # while the interval is short
        self._until = 0.0

    @property
    def is_short(self) -> bool:
        return bool(self._shared)

    def begin(self, now: float) -> None:
        self._until = now + _LASTS_SECONDS
        if self._shared:
            return
        self._shared = shared = vars(sys).setdefault(_SHARED, {"pid": os.getpid(), "own": 0.0, "users": []})
        if shared["pid"] != os.getpid():  # a fork has copied it
            shared.update(pid=os.getpid(), users=[])
        shared["users"].append(self)
        interval = sys.getswitchinterval()
        if interval > _INTERVAL_SECONDS:
            shared["own"] = fork_hooks.state()["interval"] = interval
            sys.setswitchinterval(_INTERVAL_SECONDS)

    def look(self, now: float) -> None:
        if self._shared and now > self._until:
            self.end()

    def end(self) -> None:
        """Restore the interval of the job, unless other code of breakranks needs it short."""
        self.ending()()

    def ending(self) -> Callable[[], object]:
        """Return a function that restores the interval, unless the job has changed it. It works after the unload."""
        shared, self._shared = self._shared, {}
        if not shared:
            return int
        return functools.partial(_restore, self, shared, _INTERVAL_SECONDS, _SHARED, fork_hooks.state(), sys)


def _restore(user: object, shared: dict[str, Any], short: float, name: str, at_fork: dict[str, Any], sys: Any) -> None:
    """Uses no global: the module may be unloaded."""
    if user in shared["users"]:
        shared["users"].remove(user)
    if shared["users"]:
        return
    if shared["own"] and sys.getswitchinterval() <= short:
        sys.setswitchinterval(shared["own"])
        at_fork["interval"] = 0.0
    if not shared["users"]:
        vars(sys).pop(name, None)
    elif shared["own"]:  # another thread has begun since
        at_fork["interval"] = shared["own"]
        sys.setswitchinterval(short)


def wake_on_time() -> None:
    """Make timers of this thread, and of threads that it starts, precise: the kernel does not coalesce them."""
    try:
        with open(f"/proc/{threading.get_native_id()}/timerslack_ns", "w") as file:
            file.write("1")
    except OSError:
        pass
