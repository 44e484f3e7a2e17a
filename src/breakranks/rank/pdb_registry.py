"""The pdb of each thread of this process. Each steps on its own; all share one table of breakpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from breakranks.rank.rank_pdb import RankPdb


class PdbRegistry:
    """``make`` creates the pdb of the calling thread; ``prepare`` imports the modules that this needs."""

    def __init__(self, make: Callable[[], RankPdb], prepare: Callable[[], object]) -> None:
        self._make = make
        self.prepare = prepare
        self._by_thread: dict[int, RankPdb] = {}

    def mine(self) -> RankPdb:
        """Return the pdb of the calling thread."""
        pdb = self._by_thread.get(threading.get_ident())
        if pdb is None:
            pdb = self._by_thread[threading.get_ident()] = self._make()
        return pdb

    def of(self, thread: int) -> RankPdb | None:
        return self._by_thread.get(thread)

    def all(self) -> list[RankPdb]:
        return list(self._by_thread.values())

    def clear(self) -> None:
        self._by_thread.clear()
