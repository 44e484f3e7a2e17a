"""All that was seen of one job on this host, and the snapshot made of it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from breakranks import __version__
from breakranks.jobs.found_jobs import FoundJob, FoundRank
from breakranks.observe import kernel_locks, oom_kills, open_files, pyspy_parse
from breakranks.observe.evidence import (
    ProcessEvidence,
    as_own,
    cpu_percent,
    lasting_state,
    problems_of,
    sample_of,
    still_so,
    with_paths,
)
from breakranks.observe.process_table import ProcessEntry, ProcessTable, read_table
from breakranks.observe.redaction import redact
from breakranks.observe.this_host import user_name
from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import Introspection
from breakranks.snapshot.model import FORMAT_VERSION, Host, Problem, Process, Rank, Snapshot, StackTable
from breakranks.snapshot.recorder_tables import Group, Operation

if TYPE_CHECKING:
    # Imported only when a process is queried from inside, which most samples of `stacks` do not need.
    from breakranks.introspect.process_queries import VisitResult

_NO_C_FRAMES = Problem(
    "C frames of ranks that may not be traced. The agents in the ranks have read their Python stacks"
)


class JobEvidence:
    """The evidence of some ranks of a job, to which a sampler adds. ``details``: with helpers, files and locks."""

    def __init__(self, found: FoundJob, ranks: RankSet | None, *, details: bool) -> None:
        self.found = found
        self.ranks: list[FoundRank] = [rank for rank in found.ranks if ranks is None or rank.rank in ranks]
        self.details = details
        self.seen: dict[int, list[ProcessEvidence]] = {}
        self.times: list[float] = []
        self.visited: dict[int, tuple[VisitResult, pyspy_parse.PythonStacks | None]] = {}
        self.native = False  # C frames were read
        self.without_c_frames = False  # of a process that may not be traced: its agent has read its stacks
        self._table: ProcessTable | None = None

    @property
    def table(self) -> ProcessTable:
        """The newest process table that was read."""
        if self._table is None:
            self._table = read_table()
        return self._table

    def read_table(self) -> None:
        self._table = read_table()

    def add_visits(self, results: Mapping[int, VisitResult]) -> None:
        """Add what introspection showed. A rank that did not answer again keeps its earlier answer: what has changed
        since is dropped in the snapshot."""
        for pid, result in results.items():
            earlier, stacks = self.visited.get(pid, (result, None))
            if result.inside is None and earlier.inside is not None:
                lost = result.dump is None or isinstance(result.dump, Problem)
                dump = earlier.dump if lost else result.dump
                self.visited[pid] = (result._replace(inside=earlier.inside, dump=dump), stacks)
            else:
                self.visited[pid] = (result, self.seen[pid][-1].python)

    def drop_samples(self, keep: int) -> None:
        """Drop all but the last samples, and all of a helper that is in none of these."""
        del self.times[:-keep]
        ranks = {rank.pid for rank in self.ranks}
        for pid, seen in list(self.seen.items()):
            del seen[:-keep]
            if pid not in ranks and self.times and seen[-1].time < self.times[0]:
                del self.seen[pid]
                self.visited.pop(pid, None)

    def snapshot(self, keep: int | None = None) -> Snapshot:
        """Return a snapshot of every sample, or of the last ``keep`` samples."""
        table = StackTable()
        ranks = []
        for rank in self.ranks:
            others = {other.pid for other in self.found.ranks} - {rank.pid}
            process = self._process(rank.pid, table, keep, others)
            ranks.append(Rank(rank=rank.rank, host=_host_name(), process=process, local_rank=rank.local_rank))
        ranks, groups, operations, unread = self._with_recorders(ranks, table)
        times = self.times[-keep:] if keep else self.times
        entry = self.table.get(self.found.job.launcher_pid)
        launcher = None if entry is None else self._launcher(entry, table, keep)
        return Snapshot(
            version=FORMAT_VERSION,
            made_by=f"breakranks {__version__}",
            time=times[-1] if times else time.time(),
            job=self.found.job,
            ranks=tuple(ranks),
            frames=tuple(table.frames),
            stacks=tuple(table.stacks),
            hosts=(self._host(),),
            missing=self.found.missing,
            interval=times[-1] - times[0] if times else 0.0,
            native=self.native,
            launcher=launcher,
            problems=(_NO_C_FRAMES, *unread) if self.without_c_frames else unread,
            groups=groups,
            operations=operations,
        )

    def _with_recorders(
        self, ranks: list[Rank], table: StackTable
    ) -> tuple[list[Rank], tuple[Group, ...], tuple[Operation, ...], tuple[Problem, ...]]:
        if not self.visited:
            return ranks, (), (), ()
        from breakranks.introspect.process_queries import join

        visits = {rank.rank: self.visited[rank.process.pid][0] for rank in ranks if rank.process.pid in self.visited}
        results = {rank: visit.dump for rank, visit in visits.items()}
        unread = (
            *(result for result in results.values() if isinstance(result, Problem)),
            *(visit.problem for visit in visits.values() if visit.problem is not None),
        )
        dumps = {
            rank: result for rank, result in results.items() if result is not None and not isinstance(result, Problem)
        }
        world = RankSet(range(self.found.job.world_size)) or RankSet(results)
        recorders, groups, operations = join(dumps, table, world)
        return [replace(rank, recorder=recorders.get(rank.rank)) for rank in ranks], groups, operations, unread

    def _inside(self, pid: int) -> Introspection | None:
        """Return the part of a process's introspection that still holds."""
        visit, then = self.visited.get(pid, (None, None))
        if visit is None or visit.inside is None or then is None:
            return None
        now = self._newest_stacks(pid)
        return still_so(visit.inside, then, now) if now is not None else None

    def _newest_stacks(self, pid: int) -> pyspy_parse.PythonStacks | None:
        """Return the stacks of the newest sample, or of the one before if they could not be read this once."""
        stacks = [evidence.python for evidence in self.seen[pid][-2:]]
        readable = [found for found in stacks if found is not None and found.problem is None]
        return readable[-1] if readable else stacks[-1]

    def _launcher(self, entry: ProcessEntry, table: StackTable, keep: int | None) -> Process:
        return self._plain(entry) if self.found.ranks else self._process(entry.pid, table, keep, set())

    def _host(self) -> Host:
        kills = oom_kills.recent_kills() if self.details else ()
        return Host(
            name=_host_name(),
            cpus=os.cpu_count() or 0,
            load=os.getloadavg()[0],
            oom_kills=tuple(text for _, text in kills),
            oom_killed=tuple(pid for pid, _ in kills),
        )

    def _plain(self, entry: ProcessEntry) -> Process:
        """Return a process with no evidence but the process table."""
        return Process(
            pid=entry.pid,
            parent=entry.ppid,
            command=tuple(redact(self.table.command(entry.pid))),
            name=entry.name,
            state=entry.state,
            started=entry.started,
            rss=entry.rss,
            python=self.table.is_python(entry),
        )

    def _process(self, pid: int, table: StackTable, keep: int | None, ranks: set[int]) -> Process:
        """Return a process with its evidence and its children, without those that are ``ranks`` themselves."""
        entry = self.table.get(pid)
        seen = self.seen.get(pid, [])[-keep:] if keep else self.seen.get(pid, [])
        samples = tuple(sample_of(evidence, table) for evidence in seen)
        base = self._plain(entry) if entry is not None else Process(pid=pid, parent=0, command=())
        children = tuple(
            self._process(child.pid, table, keep, ranks)
            for child in (self.table.children(pid) if self.details else ())
            if child.pid not in ranks
        )
        problems = tuple(problems_of(seen))
        last = seen[-1].state if seen else None
        process = Process(
            pid=pid,
            parent=base.parent,
            command=base.command,
            name=base.name,
            user=user_name(entry.uid) if entry is not None else "",
            state=lasting_state(seen) if seen else base.state,
            started=base.started,
            rss=base.rss,
            cpu_percent=cpu_percent(seen, entry),
            wchan=last.threads[0].wchan if last is not None and last.threads else "",
            python=base.python,
            samples=samples,
            problems=problems,
            children=children,
            inside=self._inside(pid),
        )
        return _with_details(process) if self.details and last is not None else process


def _with_details(process: Process) -> Process:
    """Return a process with its open files, sockets and file locks as they are now."""
    threads = process.samples[-1].threads if process.samples else ()
    table = kernel_locks.kernel_locks()
    fds = frozenset(thread.call.fd for thread in threads if thread.call is not None and thread.python)
    opened, inodes = open_files.opened(process.pid, fds)
    awaited = kernel_locks.waited_for(process.pid, with_paths(threads, process.inside), table)
    return replace(
        process,
        files=opened,
        sockets=open_files.sockets(process.pid, inodes, fds),
        locks=(*as_own(awaited, process.inside, opened), *kernel_locks.conflicts(process.pid, opened, table)),
    )


def _host_name() -> str:
    return os.uname().nodename
