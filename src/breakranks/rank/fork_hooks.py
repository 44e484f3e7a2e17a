"""Functions that are called when the job forks: a child has nothing of its parent's debugging, from its first line on.

Python cannot take such functions back. They are registered once in a process, before anything of ours is armed there,
and stay; they use no name of this module, which may be gone by then. While no agent is there they do nothing.

A fork waits while a thread of ours imports modules or starts an agent. Else the child would have half of a module, a
lock on it that nobody releases, or open files that nobody knows of.
"""

from __future__ import annotations

import _thread
import os
import sys

MYPY = False  # typing is not imported where the process has not
if MYPY:  # imported before a fork can wait: as little as can be
    from collections.abc import Callable
    from typing import Any

_STATE = "_breakranks_at_fork"  # an attribute of sys: whoever attaches next must find it again
_WAIT_SECONDS = 2.0  # for which a fork waits at most
_SHORT_SECONDS = 1e-5  # a switch interval of ours (switch_interval.py)


def begin(settle: Callable[[], None]) -> None:
    """From now on ``settle`` is called in a forked child, before any line of the job's."""
    state()["settle"] = settle


def end() -> None:
    state()["settle"] = None


class ForksPaused:
    """A context within which no thread of the job forks. Waits end; a thread waits neither for its own fork nor for a
    context that it is in already."""

    def __enter__(self) -> None:
        self._state, me = state(), _thread.get_ident()
        self._lock = self._state["lock"]
        mine = me in (self._state["forking"], self._state.get("pausing"))
        self._held = not mine and self._lock.acquire(True, _WAIT_SECONDS)
        if self._held:
            self._state["pausing"] = me

    def __exit__(self, *error: object) -> None:
        if self._held:
            self._state["pausing"] = 0
            self._lock.release()


def state() -> dict[str, Any]:
    """What the registered functions look at. ``interval``: the switch interval that a child is to have."""
    made: dict[str, Any] = {"lock": _thread.allocate_lock(), "forking": 0, "pausing": 0}
    made.update(settle=None, interval=0.0)
    found: dict[str, Any] = vars(sys).setdefault(_STATE, made)
    if found is made:
        _register(found)
    return found


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
        except KeyboardInterrupt:  # Python drops what is raised here
            state["interrupted"] = True

    def in_parent() -> None:
        if state["forking"] == me():
            state["forking"] = 0
            state["lock"].release()
        if state.pop("interrupted", False):
            start_thread(interrupt, ())  # in another thread: else it would be raised here

    def in_child() -> None:
        state.pop("interrupted", None)
        state["lock"], state["forking"], state["pausing"] = lock(), 0, 0
        settle, state["settle"] = state["settle"], None
        interval, state["interval"] = state["interval"], 0.0
        try:
            if settle is not None:
                settle()
        except Exception:  # nothing of ours is worth a line on the standard error of a child
            pass
        if interval and sys.getswitchinterval() <= short:
            sys.setswitchinterval(interval)

    os.register_at_fork(before=_own(before), after_in_parent=_own(in_parent), after_in_child=_own(in_child))


def _own(function: Any) -> Any:
    """With globals of its own: those of this module are cleared when the last console has left."""
    return type(function)(function.__code__, {"__name__": __name__}, function.__name__, None, function.__closure__)
