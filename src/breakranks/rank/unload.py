"""How everything of ours goes out of a process again."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from typing import Any

_QUESTION = "breakranks.rank.eval_entry"
_QUICK_SECONDS, _SLOW_SECONDS = 0.02, 1.0  # seconds between two looks whether a thread is still in code of ours


class Unload:
    """What is to be undone when the last console has left."""

    def __init__(self, finder: Any, lines: frozenset[Any]) -> None:
        self._finder = finder
        self._lines = lines

    def in_use(self) -> bool:
        """Whether a thread other than this one is still in code of ours."""
        mine = threading.get_ident()
        return any(_is_ours(frame) for ident, frame in sys._current_frames().items() if ident != mine)

    def unload(self) -> None:
        """Take every module of ours out of the process. The last that is called: nothing of ours works after it."""
        for name in [name for name in list(linecache.cache) if name not in self._lines]:
            linecache.cache.pop(name, None)
        if self._finder is not None:
            _unload(self._finder, sys.modules, sys.meta_path)


def wait_for_threads(leaving: Unload, stays: Any) -> bool:
    """Until no other thread is in code of ours; False as soon as ``stays`` says that we are wanted again."""
    began = time.monotonic()
    while leaving.in_use():
        if stays(_QUICK_SECONDS if time.monotonic() - began < 2.0 else _SLOW_SECONDS):
            return False
    return True


def _is_ours(frame: Any) -> bool:
    """Whether a thread is in code of the agent's; one that answers a question sees to itself."""
    names = set()
    while frame is not None:
        names.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return _QUESTION not in names and any(name.startswith("breakranks.") for name in names)


def _unload(finder: Any, modules: dict[str, Any], finders: list[Any]) -> None:
    """Uses no global: those are what is taken away. Classes keep themselves alive until the collector comes; what they
    hold is let go of at once."""
    lock: Any = modules["_imp"]
    lock.acquire_lock()  # whoever attaches now finds all of it or nothing
    try:
        finder.users -= 1
        if finder.users > 0:
            return
        if finder in finders:
            finders.remove(finder)
        ours = [modules.pop(name) for name in finder.names if name in modules]
    finally:
        lock.release_lock()
    for module in ours:
        for value in list(vars(module).values()):
            if isinstance(value, type) and str(value.__module__).startswith("breakranks."):
                for name in list(vars(value)):
                    try:
                        delattr(value, name)
                    except (AttributeError, TypeError):
                        pass
    for module in ours:
        vars(module).clear()
    finder.close()
