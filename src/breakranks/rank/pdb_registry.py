"""The pdb of each thread of this process: each steps for itself, and all of them have one table of breakpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from breakranks.rank.rank_pdb import RankPdb


class PdbRegistry:
    """``make`` makes one for the thread that asks; ``prepare`` imports what that takes."""

    def __init__(self, make: Callable[[], RankPdb], prepare: Callable[[], object]) -> None:
        self._make = make
        self.prepare = prepare
        self._by_thread: dict[int, RankPdb] = {}

    def mine(self) -> RankPdb:
        """That of the thread that asks."""
        found = self._by_thread.get(threading.get_ident())
        if found is None:
            found = self._by_thread[threading.get_ident()] = self._make()
        return found

    def of(self, thread: int) -> RankPdb | None:
        return self._by_thread.get(thread)

    def all(self) -> list[RankPdb]:
        return list(self._by_thread.values())

    def clear(self) -> None:
        self._by_thread.clear()
