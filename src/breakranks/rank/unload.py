"""Removes the modules of breakranks from a process that it was injected into."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from typing import Any

_EVAL_ENTRY = "breakranks.rank.eval_entry"
_QUICK_SECONDS, _SLOW_SECONDS = 0.02, 1.0  # between two checks whether a thread still runs code of breakranks


class Unload:
    """What to undo when the last console has left."""

    def __init__(self, finder: Any, lines: frozenset[Any]) -> None:
        self._finder = finder
        self._lines = lines

    def in_use(self) -> bool:
        """Whether a thread other than this one runs code of breakranks."""
        own = threading.get_ident()
        return any(_is_ours(frame) for ident, frame in sys._current_frames().items() if ident != own)

    def unload(self) -> None:
        """Remove every module of breakranks. The last call: no code of breakranks works after it."""
        for name in [name for name in list(linecache.cache) if name not in self._lines]:
            linecache.cache.pop(name, None)
        if self._finder is not None:
            _unload(self._finder, sys.modules, sys.meta_path)


def wait_for_threads(leaving: Unload, stays: Any) -> bool:
    """Wait until no other thread runs code of breakranks. Return False if ``stays`` reports a new console."""
    began = time.monotonic()
    while leaving.in_use():
        if stays(_QUICK_SECONDS if time.monotonic() - began < 2.0 else _SLOW_SECONDS):
            return False
    return True


def _is_ours(frame: Any) -> bool:
    """Whether a thread runs code of the agent. A thread of ``eval`` unloads itself and does not count."""
    names = set()
    while frame is not None:
        names.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return _EVAL_ENTRY not in names and any(name.startswith("breakranks.") for name in names)


def _unload(finder: Any, modules: dict[str, Any], finders: list[Any]) -> None:
    """Remove the modules without using a global, since globals are removed. Classes live until the next garbage
    collection, so their attributes are deleted at once."""
    lock: Any = modules["_imp"]
    lock.acquire_lock()  # a process that attaches now finds all modules or none
    try:
        finder.users -= 1
        if finder.users > 0:
            return
        if finder in finders:
            finders.remove(finder)
        removed = [modules.pop(name) for name in finder.names if name in modules]
    finally:
        lock.release_lock()
    for module in removed:
        for value in list(vars(module).values()):
            if isinstance(value, type) and str(value.__module__).startswith("breakranks."):
                for name in list(vars(value)):
                    try:
                        delattr(value, name)
                    except (AttributeError, TypeError):
                        pass
    for module in removed:
        vars(module).clear()
    finder.close()
