"""The stacks of those who are most likely asked for, on their way before anything is certain.

To find a job, to number its ranks and to show them takes as much time as py-spy needs for them all, and
most of it is spent importing. Which processes are ranks is known much earlier. So their stacks are taken
meanwhile; a :class:`~breakranks.reach.local.Session` uses those that turn out to be of the ranks that it
looks at, and looks at the others itself.

Imports nothing that needs the snapshot's model: that would be half of the time that this saves.
"""

from __future__ import annotations

import time

from breakranks.jobs.identity import Candidate, Identities, candidates
from breakranks.observe import state
from breakranks.observe.stacks import Sweep
from breakranks.observe.table import Table, read_table
from breakranks.observe.watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from breakranks.observe.stacks import PythonStacks
    from breakranks.rankset import RankSet

# Their processes may be no ranks but the parents of ranks, and are asked about that first.
_MAY_SPAWN = ("slurm", "mpirun", "mpich", "python")


class HeadStart:
    """Has looked at the states of some processes and is taking their stacks.

    ``close`` it in the end, whatever happens: no process stays stopped, and no py-spy stays behind.
    """

    def __init__(self, table: Table, pids: list[int]) -> None:
        self.table = table
        self.dog = Watchdog()
        try:
            self.time = time.time()
            self.states = {pid: state.look(pid) for pid in pids}
            self.pids = frozenset(pid for pid in pids if self.states[pid].state not in "ZX")
            for pid in self.pids:
                self.dog.guard(pid)
            still = {pid for pid in self.pids if self.states[pid].state in state.STILL}
            self._sweep = Sweep([pid for pid in pids if pid in self.pids], gently=still.__contains__, locals=False)
        except BaseException:
            self.dog.close(clean=False)
            raise
        try:
            self._sweep.start()
        except BaseException:
            self.close(clean=False)
            raise

    def stacks(self) -> dict[int, PythonStacks]:
        """What was found, when all of it is there."""
        return self._sweep.result()

    def close(self, clean: bool = True) -> None:
        killed = self._sweep.cancel()
        self.dog.close(clean=clean and not killed)


def begin(key: str | None, ranks: RankSet | None) -> HeadStart | None:
    """A head start for the job that a person means, if it is plain which processes are its ranks."""
    table = read_table()
    pids = likely_ranks(table, key, ranks)
    return HeadStart(table, pids) if pids else None


def likely_ranks(table: Table, key: str | None, ranks: RankSet | None) -> list[int]:
    """The ranks of the only job there is, or of the one that ``key`` names; none where there is a doubt."""
    found = [one for one in candidates(table, Identities(table)) if not one.helper and (not key or _named(one, key))]
    jobs = {(one.identity.job, one.identity.world) for one in found}
    if len(jobs) != 1 or any(one.identity.row.name in _MAY_SPAWN or not one.identity.row.rank for one in found):
        return []
    found.sort(key=lambda one: one.identity.rank)
    return [one.entry.pid for one in found if ranks is None or one.identity.rank in ranks]


def _named(candidate: Candidate, key: str) -> bool:
    """Whether ``key`` is, as far as can be told, the whole key of a candidate's job."""
    values = dict(candidate.identity.job)
    named = ".".join(values[name] for name in candidate.identity.row.key if name in values)
    return bool(named) and key.endswith("-" + named)
