"""The stacks of those who are most likely asked for, on their way before anything is certain.

To find a job, to number its ranks and to show them takes as much time as py-spy needs for them all, and
most of it goes into importing. So a guess is made at who the ranks are, and their stacks are taken
meanwhile. A :class:`~breakranks.reach.local.Session` uses those that turn out to be of ranks that it looks
at, and looks at the others itself.

Imports only what is built in or tiny: all else would be a part of the time that this saves.
"""

from __future__ import annotations

import time

from breakranks.observe import state
from breakranks.observe.sweep import Sweep
from breakranks.observe.watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from breakranks.observe.stacks import PythonStacks
    from breakranks.observe.table import Table


class HeadStart:
    """Is taking the stacks of some processes. ``states`` are complete when ``stacks()`` are.

    ``close`` it in the end, whatever happens: then no process stays stopped and no py-spy stays behind.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._sweep: Sweep | None = None
        self._table: Table | None = None
        self._found: dict[int, PythonStacks] | None = None
        self.dog = Watchdog()
        self.time = time.time()
        self.states: dict[int, state.ProcessState] = {}
        try:
            self._sweep = Sweep(pids, gently=self._before_look, locals=False)
            self._sweep.start()
        except BaseException:
            self.close(clean=False)
            raise

    def _before_look(self, pid: int) -> bool:
        """Asked just before a process is touched: its state, since that wakes it, and a word to the watchdog."""
        if pid not in self.states:
            self.states[pid] = state.look(pid)
            self.dog.guard(pid)
        return self.states[pid].state in state.STILL

    @property
    def busy(self) -> bool:
        return self._sweep is not None and self._sweep.busy

    def stacks(self) -> dict[int, PythonStacks]:
        """What was found, when all of it is there."""
        if self._found is None:
            from breakranks.observe.stacks import read

            assert self._sweep is not None
            self._found = read(self._sweep)
        return self._found

    def table(self) -> Table:
        """The processes of this machine, read once for whoever finds the job and whoever looks at it."""
        if self._table is None:
            from breakranks.observe.table import read_table

            self._table = read_table()
        return self._table

    def close(self, clean: bool = True) -> None:
        killed = self._sweep is not None and self._sweep.cancel()
        self.dog.close(clean=clean and not killed)
