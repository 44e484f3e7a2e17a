"""Give ranks of the job to what names only a local rank or a process."""

from __future__ import annotations

import re
from dataclasses import replace

from breakranks.logs.failure_groups import Attempt, LocalRank
from breakranks.logs.log_events import ExitEvent

# In the text of an exception of torch's C++ code; in the default group it is the rank of the job. And in that of
# torch.multiprocessing.spawn, whose processes are numbered as their ranks are.
_NATIVE_RANK = re.compile(r"^\[PG [^\]]*\((?:default_pg)?\) Rank (\d+)\]|^\s*-- Process (\d+) terminated with")


def name_ranks(attempt: Attempt) -> bool:
    """Name the ranks of exits and exceptions as far as the logs tell. Return whether the job has several hosts."""
    hosts = _Hosts(attempt)
    attempt.exits = [
        event if event.rank >= 0 else replace(event, rank=hosts.rank_of_exit(event)) for event in attempt.exits
    ]
    failed = {event.rank for event in attempt.exits if event.code > 0 or event.signal}
    went_on = attempt.regular_ends - failed
    for group in attempt.exceptions.values():
        if group.unnamed == 1 and (told := _NATIVE_RANK.search(group.raised.message)):
            group.ranks, group.unnamed = {int(told[1] or told[2])}, 0
        ranks = [hosts.rank(local) for local in group.local_ranks]
        group.ranks |= {rank for rank in ranks if rank >= 0}
        group.unnamed += sum(rank < 0 for rank in ranks)
        group.local_ranks.clear()  # done: another report may follow
        group.handled = group.handled or (bool(group.ranks) and group.ranks <= went_on)
    return hosts.are_several


class _Hosts:
    """The first rank of the host that each log is of, from events that name both: a rank and its local rank."""

    def __init__(self, attempt: Attempt) -> None:
        self._by_pid = {
            (event.line.source, event.pid): event.rank for event in attempt.exits if event.pid > 0 and event.rank >= 0
        }
        self._rank_of_pid = attempt.rank_of_pid
        self._first_ranks: dict[str, set[int]] = {}
        for event in attempt.exits:
            if event.rank >= 0 and event.local_rank >= 0:
                self._first_ranks.setdefault(event.line.source, set()).add(event.rank - event.local_rank)
        locals_of: dict[int, set[str]] = {}
        for local in (local for group in attempt.exceptions.values() for local in group.local_ranks if local.shared):
            locals_of.setdefault(local.number, set()).add(local.source)
        first_ranks = {first for found in self._first_ranks.values() for first in found}
        # The same local rank in two logs of several ranks: each is of a host of its own.
        self.are_several = len(first_ranks) > 1 or any(len(sources) > 1 for sources in locals_of.values())
        self._only = next(iter(first_ranks), 0)

    def rank(self, local: LocalRank) -> int:
        """Return the rank of the job, -1 if the logs do not tell it."""
        found = self._first_ranks.get(local.source, set())
        if len(found) == 1:
            return next(iter(found)) + local.number
        return -1 if self.are_several or found else self._only + local.number

    def rank_of_exit(self, event: ExitEvent) -> int:
        known = self._by_pid.get((event.line.source, event.pid), self._rank_of_pid.get(event.pid, -1))
        if known >= 0 or event.local_rank < 0:
            return known
        return self.rank(LocalRank(event.line.source, event.local_rank, shared=True))
