"""Functions that Python calls when the job forks: a child drops its parent's debugging before its first line.

Python cannot unregister such functions. They are registered once per process, before anything is armed, and stay. They
use no name of this module, which may be unloaded by then. Without an agent they do nothing.

A fork waits while a thread of breakranks imports modules or starts an agent. Else the child would have a half-imported
module, an import lock that is never released, or open files that no code knows of.
"""

from __future__ import annotations

import _thread
import os
import sys

MYPY = False  # typing is not imported if the process has not imported it
if MYPY:  # this module is imported before a fork can wait, so it imports as little as possible
    from collections.abc import Callable
    from typing import Any

_STATE = "_breakranks_at_fork"  # an attribute of sys: the next attach must find it
_WAIT_SECONDS = 2.0  # the longest wait of a fork
_SHORT_SECONDS = 1e-5  # the interval that switch_interval.py sets


def begin(clean_up: Callable[[], None]) -> None:
    """Call ``clean_up`` in a forked child from now on, before any line of the job."""
    state()["clean_up"] = clean_up


def end() -> None:
    state()["clean_up"] = None


class ForksPaused:
    """A context within which no thread of the job forks.

    Every wait has a limit. A thread waits neither for its own fork nor for a context that it is in already.
    """

    def __enter__(self) -> None:
        self._state, me = state(), _thread.get_ident()
        self._lock = self._state["lock"]
        own = me in (self._state["forking"], self._state.get("pausing"))
        self._held = not own and self._lock.acquire(True, _WAIT_SECONDS)
        if self._held:
            self._state["pausing"] = me

    def __exit__(self, *error: object) -> None:
        if self._held:
            self._state["pausing"] = 0
            self._lock.release()


def state() -> dict[str, Any]:
    """Return the state that the registered functions read. ``interval``: the switch interval for a child."""
    new: dict[str, Any] = {"lock": _thread.allocate_lock(), "forking": 0, "pausing": 0}
    new.update(clean_up=None, interval=0.0)
    shared: dict[str, Any] = vars(sys).setdefault(_STATE, new)
    if shared is new:
        _register(shared)
    return shared


def _register(
    state: dict[str, Any],
    wait: float = _WAIT_SECONDS,
    short: float = _SHORT_SECONDS,
    sys: Any = sys,
    me: Callable[[], int] = _thread.get_ident,
    lock: Callable[[], Any] = _thread.allocate_lock,
    start_thread: Callable[..., Any] = _thread.start_new_thread,
    interrupt: Callable[[], None] = _thread.interrupt_main,
) -> None:
    def before() -> None:
        if state.get("pausing") == me():
            return
        try:
            if state["lock"].acquire(True, wait):
                state["forking"] = me()
        except KeyboardInterrupt:  # Python ignores what is raised here: raise it again later
            state["interrupted"] = True

    def in_parent() -> None:
        if state["forking"] == me():
            state["forking"] = 0
            state["lock"].release()
        if state.pop("interrupted", False):
            start_thread(interrupt, ())  # in another thread: else it would be raised in this function, and ignored

    def in_child() -> None:
        state.pop("interrupted", None)
        state["lock"], state["forking"], state["pausing"] = lock(), 0, 0
        clean_up, state["clean_up"] = state["clean_up"], None
        interval, state["interval"] = state["interval"], 0.0
        vars(sys).pop("_breakranks_interval", None)
        try:
            if clean_up is not None:
                clean_up()
        except Exception:  # the child must not print an error of breakranks
            pass
        if interval and sys.getswitchinterval() <= short:
            sys.setswitchinterval(interval)

    os.register_at_fork(before=_own(before), after_in_parent=_own(in_parent), after_in_child=_own(in_child))


def _own(function: Any) -> Any:
    """Copy a function with its own globals: those of this module are cleared when the last console has left."""
    return type(function)(function.__code__, {"__name__": __name__}, function.__name__, None, function.__closure__)
