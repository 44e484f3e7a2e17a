"""Look at the ranks of this host, as often as asked, and make a snapshot of what was seen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from breakranks import __version__
from breakranks.introspect.library_waits import may_wait
from breakranks.jobs.found_jobs import FoundJob
from breakranks.jobs.unreadable_processes import user_name
from breakranks.log import Log, milliseconds
from breakranks.observe import kernel_locks, native_frames, oom_kills, open_files, process_state, pyspy_parse
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
from breakranks.observe.native_frames import NativeStacks
from breakranks.observe.process_table import ProcessEntry, ProcessTable, read_table, redact
from breakranks.observe.watchdog import Watchdog
from breakranks.rankset import RankSet
from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.introspection import Introspection
from breakranks.snapshot.model import (
    FORMAT_VERSION,
    Frame,
    Host,
    Problem,
    Process,
    Rank,
    Snapshot,
    StackTable,
)
from breakranks.snapshot.own_threads import before_agent
from breakranks.snapshot.recorder_tables import Group, Operation

if TYPE_CHECKING:
    # Imported where a process is really asked: most looks of `stacks` ask none.
    from breakranks.introspect.visits import SeenProcess, VisitResult

_log = Log("backend")
_WEAR_OFF = 5
# Nanoseconds. Being stopped and let go again costs a thread 25 to 65 µs; one step of the smallest job 200.
_GLANCE = 150_000
_OUR_LOOK = 250_000
_OUR_VISIT = 3_000_000  # with code of ours inside
_NO_STACK = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class Sampler:
    """Looks at one job of this host.

    >>> with Session(found) as session:      # doctest: +SKIP
    ...     session.sample()
    ...     session.sample(native=True)
    ...     snapshot = session.snapshot()

    ``details`` also looks at helpers, open files, sockets and locks; without it only at the ranks' own
    stacks, which is all that ``stacks`` needs and is quicker. Then it can take over what a head start has
    found, and its watchdog.
    """

    def __init__(
        self,
        found: FoundJob,
        *,
        ranks: RankSet | None = None,
        details: bool = True,
    ) -> None:
        self._found = found
        self._details = details
        self._ranks = [one for one in found.ranks if ranks is None or one.rank in ranks]
        self._table: ProcessTable | None = None
        self._clock = process_state.IdleClock() if details else None
        self._seen: dict[int, list[ProcessEvidence]] = {}
        self._ran: dict[int, tuple[float, dict[int, int]]] = {}
        self._times: list[float] = []
        self._native = False
        self._clean = True
        self._dog: Watchdog | None = None
        self._visited: dict[int, tuple[VisitResult, pyspy_parse.PythonStacks | None]] = {}
        self._our_share = _OUR_LOOK

    def __enter__(self) -> Sampler:
        self._dog = Watchdog()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._dog is not None:
            self._dog.close(clean=self._clean and kind is None)

    @property
    def sampled(self) -> int:
        """How many samples there are."""
        return len(self._times)

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        """One more sample of every process (``samples`` 0: none). State first, since taking a stack wakes the process.

        ``recorders``: also ask each rank for its flight recorder and what else only it knows, by code of ours that
        runs in it. ``visit``: without the recorder, ``all`` ranks, or ``some``: those whose main thread waits for
        something that cannot be named from outside.
        """
        if samples:
            self._sample(native=native, recorders=recorders)
        if visit:
            self._ask_inside(all_ranks=visit == "all")

    def _sample(self, *, native: bool, recorders: bool) -> None:
        assert self._dog is not None, "use it as a context manager"
        began = time.monotonic()
        self._table = read_table() if self._details else self._table
        pids = [one.pid for one in self._ranks] or self._launcher()
        readable = set(pids)
        if self._details:
            assert self._table is not None
            for entry, parent_is_rank in self._helpers():
                pids.append(entry.pid)
                if parent_is_rank and self._has_stack(entry):
                    readable.add(entry.pid)
        now = time.time()
        states = {pid: process_state.look(pid, self._clock) for pid in pids}
        quiet = {pid: self._quiet(pid, states[pid], now) for pid in pids}
        ask = [pid for pid in pids if pid in readable and states[pid].state not in "ZX"]
        for pid in ask:
            self._dog.guard(pid)
        gently = {pid for pid in ask if states[pid].state in process_state.STILL}
        python = pyspy_parse.sweep(ask, gently=gently.__contains__, locals=self._details) if ask else {}
        deep: dict[int, NativeStacks] = {}
        if native:
            deep = self._sweep_native(
                [pid for pid in ask if states[pid].state not in process_state.STILL], states, python
            )
        for pid in pids:
            self._seen.setdefault(pid, []).append(
                ProcessEvidence(now, states[pid], python.get(pid), deep.get(pid), *quiet[pid])
            )
        self._times.append(now)
        self._our_share = _OUR_VISIT if recorders else _OUR_LOOK
        if recorders:
            self._visit(states, flight=True)
        if self._details:
            self._ran = _settled_run_times({pid: states[pid] for pid in pids})
        read = sum(one.problem is None for one in python.values())
        _log.info("sample taken", number=len(self._times), processes=len(pids), stacks=read, native=len(deep),
                  inside=recorders, ms=milliseconds(began))  # fmt: skip

    def _ask_inside(self, *, all_ranks: bool) -> None:
        pids = [one.pid for one in self._ranks if all_ranks or may_wait(one.pid, self._main_frames(one.pid))]
        if pids:
            self._visit({pid: seen[-1].state for pid, seen in self._seen.items()}, flight=False, only=pids)

    def _main_frames(self, pid: int) -> tuple[Frame, ...]:
        python = self._seen[pid][-1].python
        return before_agent(next((one.frames for one in python.threads if one.tid == pid), ())) if python else ()

    def _visit(
        self, states: dict[int, process_state.ProcessState], *, flight: bool, only: list[int] | None = None
    ) -> None:
        from breakranks.introspect import visits

        pids = [one.pid for one in self._ranks] if only is None else only
        done: set[int] = set()
        while pids:
            pids = [pid for pid in pids if pid in states and states[pid].state not in (*process_state.STILL, "Z", "X")]
            held = {pid: name for pid in pids if (name := self._gil_holder(pid))}
            found = visits.visit({pid: self._known(pid) for pid in pids}, held, self._dog, flight=flight)
            self._visited |= {pid: (one, self._seen[pid][-1].python) for pid, one in found.items()}
            done |= set(pids)
            # Then the helpers that they wait for, if any.
            pids, flight = [pid for pid in visits.awaited_workers(found) if pid not in done], False

    def _known(self, pid: int) -> SeenProcess:
        """A process as the newest sample has it."""
        from breakranks.introspect.questions import SeenThread
        from breakranks.introspect.visits import SeenProcess

        if self._table is None:
            self._table = read_table()
        entry = self._table.get(pid)
        python = self._seen[pid][-1].python
        seen = sorted(python.threads, key=lambda one: one.tid != pid) if python else ()  # the main thread first
        threads = tuple(SeenThread(one.tid, frames) for one in seen if (frames := before_agent(one.frames)))
        return SeenProcess(entry.started if entry is not None else 0.0, threads)

    def _gil_holder(self, pid: int) -> str:
        """The thread that has kept the GIL in every look, and is blocked: no Python can run there."""
        names = set()
        for one in self._seen[pid][-2:]:
            owner = next((t for t in one.python.threads if t.gil), None) if one.python else None
            blocked = {t.tid for t in one.state.threads if t.state in "SD"}
            names.add(owner.name if owner is not None and owner.tid in blocked else "")
        return names.pop() if len(names) == 1 else ""

    def _launcher(self) -> list[int]:
        """The launcher, when it has started no rank: then what it waits for is the answer."""
        pid = self._found.job.launcher_pid
        return [pid] if pid and not self._found.ranks else []

    def _sweep_native(
        self,
        pids: list[int],
        states: dict[int, process_state.ProcessState],
        python: dict[int, pyspy_parse.PythonStacks],
    ) -> dict[int, NativeStacks]:
        """C frames. They take a tenth of a second and more of a process's time to read, so of the processes
        that are at the same place of the same library one stands for all; ``stacks`` asks each."""
        stands_for = _representatives(pids, states, python) if self._details else {pid: pid for pid in pids}
        found, clean = native_frames.sweep(dict.fromkeys(stands_for.values()))
        self._native = True
        self._clean = self._clean and clean
        return {
            pid: found[other]
            if pid == other
            else native_frames.borrow(found[other], _tids(states, pid), _tids(states, other))
            for pid, other in stands_for.items()
        }

    def _quiet(self, pid: int, now: process_state.ProcessState, at: float) -> tuple[float, tuple[int, ...] | None]:
        """Which threads ran since the last sample's end, a span in which nothing of ours touched them.

        More than a glance: somebody else's inspector may wake a thread for a moment, too.
        """
        before = self._ran.get(pid)
        if before is None:
            return 0.0, None
        since, ran = before
        # While we look ourselves a step may pass unseen, so the whole time since the last sample counts as well.
        start = {thread.tid: thread.ran for thread in self._seen[pid][-1].state.threads}
        return at - since, tuple(
            thread.tid
            for thread in now.threads
            if thread.ran - ran.get(thread.tid, 0) > _GLANCE or thread.ran - start.get(thread.tid, 0) > self._our_share
        )

    def _helpers(self) -> Iterator[tuple[ProcessEntry, bool]]:
        """Processes below the ranks that are no ranks themselves, and whether they may have a stack."""
        assert self._table is not None
        ranks = {one.pid for one in self._found.ranks}
        for one in self._ranks:
            queue = [entry for entry in self._table.children(one.pid) if entry.pid not in ranks]
            for entry in queue:
                yield entry, True
                queue.extend(child for child in self._table.children(entry.pid) if child.pid not in ranks)

    def _has_stack(self, entry: ProcessEntry) -> bool:
        assert self._table is not None
        if not self._table.is_python(entry):
            return False
        command = " ".join(self._table.command(entry.pid))
        return not any(word in command for word in _NO_STACK)

    def snapshot(self, keep: int | None = None) -> Snapshot:
        """Everything seen so far, or the last ``keep`` samples of it."""
        if self._table is None:
            self._table = read_table()
        table = StackTable()
        ranks = []
        for one in self._ranks:
            process = self._process(one.pid, table, keep, {r.pid for r in self._found.ranks} - {one.pid})
            ranks.append(Rank(rank=one.rank, host=_host_name(), process=process, local_rank=one.local_rank))
        ranks, groups, operations, unread = self._with_recorders(ranks, table)
        times = self._times[-keep:] if keep else self._times
        entry = self._table.get(self._found.job.launcher_pid)
        launcher = None if entry is None else self._of_launcher(entry, table, keep)
        return Snapshot(
            version=FORMAT_VERSION,
            made_by=f"breakranks {__version__}",
            time=times[-1] if times else time.time(),
            job=self._found.job,
            ranks=tuple(ranks),
            frames=tuple(table.frames),
            stacks=tuple(table.stacks),
            hosts=(self._host(),),
            missing=self._found.missing,
            interval=times[-1] - times[0] if times else 0.0,
            native=self._native,
            launcher=launcher,
            problems=unread,
            groups=groups,
            operations=operations,
        )

    def _with_recorders(
        self, ranks: list[Rank], table: StackTable
    ) -> tuple[list[Rank], tuple[Group, ...], tuple[Operation, ...], tuple[Problem, ...]]:
        if not self._visited:
            return ranks, (), (), ()
        from breakranks.introspect.visits import join

        visited = {one.rank: self._visited[one.process.pid][0] for one in ranks if one.process.pid in self._visited}
        found = {rank: one.dump for rank, one in visited.items()}
        unread = (
            *(one for one in found.values() if isinstance(one, Problem)),
            *(one.problem for one in visited.values() if one.problem is not None),
        )
        dumps = {rank: one for rank, one in found.items() if one is not None and not isinstance(one, Problem)}
        world = RankSet(range(self._found.job.world_size)) or RankSet(found)
        read, groups, operations = join(dumps, table, world)
        return [replace(one, recorder=read.get(one.rank)) for one in ranks], groups, operations, unread

    def _inside(self, pid: int) -> Introspection | None:
        """What a process said of itself, as far as it still holds."""
        one, then = self._visited.get(pid, (None, None))
        if one is None or one.inside is None or then is None:
            return None
        now = self._seen[pid][-1].python
        return still_so(one.inside, then, now) if now is not None else None

    def _of_launcher(self, entry: ProcessEntry, table: StackTable, keep: int | None) -> Process:
        return self._plain(entry) if self._found.ranks else self._process(entry.pid, table, keep, set())

    def _host(self) -> Host:
        kills: tuple[str, ...] = ()
        if self._details:
            kills = oom_kills.recent_kills()
        return Host(name=_host_name(), cpus=os.cpu_count() or 0, load=os.getloadavg()[0], oom_kills=kills)

    def _plain(self, entry: ProcessEntry) -> Process:
        """A process as the table has it, with no evidence of its own."""
        assert self._table is not None
        return Process(
            pid=entry.pid,
            parent=entry.ppid,
            command=tuple(redact(self._table.command(entry.pid))),
            name=entry.name,
            state=entry.state,
            started=entry.started,
            rss=entry.rss,
            python=self._table.is_python(entry),
        )

    def _process(self, pid: int, table: StackTable, keep: int | None, ranks: set[int]) -> Process:
        assert self._table is not None
        entry = self._table.get(pid)
        seen = self._seen.get(pid, [])[-keep:] if keep else self._seen.get(pid, [])
        samples = tuple(sample_of(one, table) for one in seen)
        base = self._plain(entry) if entry is not None else Process(pid=pid, parent=0, command=())
        children = tuple(
            self._process(child.pid, table, keep, ranks)
            for child in (self._table.children(pid) if self._details else ())
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
        return _with_details(process) if self._details and last is not None else process


def _tids(states: dict[int, process_state.ProcessState], pid: int) -> tuple[tuple[int, str], ...]:
    return tuple((thread.tid, thread.name) for thread in states[pid].threads)


def _representatives(
    pids: list[int], states: dict[int, process_state.ProcessState], python: dict[int, pyspy_parse.PythonStacks]
) -> dict[int, int]:
    """Which process may stand for which, when C frames are read.

    Only where the innermost frame is a library's: then Python's stack already says what the C frames will. A
    process that called C from its own code is always asked itself.
    """
    first: dict[object, int] = {}
    found = {}
    for pid in pids:
        threads = python[pid].threads if pid in python else ()
        main = next((thread for thread in threads if thread.tid == pid), None)
        if main is None or not main.frames or is_own(main.frames[-1].file):
            found[pid] = pid
            continue
        calls = tuple((t.name, t.state, t.call.name if t.call else "") for t in states[pid].threads)
        key = (tuple(thread.frames for thread in threads), calls)
        found[pid] = first.setdefault(key, pid)
    return found


def _with_details(process: Process) -> Process:
    threads = process.samples[-1].threads if process.samples else ()
    table = kernel_locks.kernel_locks()
    asked = frozenset(thread.call.fd for thread in threads if thread.call is not None and thread.python)
    opened, inodes = open_files.opened(process.pid, asked)
    awaited = kernel_locks.waited_for(process.pid, with_paths(threads, process.inside), table)
    return msgspec.structs.replace(
        process,
        files=opened,
        sockets=open_files.sockets(process.pid, inodes, asked),
        locks=(*as_own(awaited, process.inside, opened), *kernel_locks.conflicts(process.pid, opened, table)),
    )


def _settled_run_times(states: dict[int, process_state.ProcessState]) -> dict[int, tuple[float, dict[int, int]]]:
    """How long each thread has run, once our own look has worn off.

    A thread that was stopped must run for a moment to go back to its wait, and on a busy machine that moment
    comes late. So read twice, a little apart, until no main thread changes or enough has been waited.
    """
    found = {pid: _run_times(pid, known) for pid, known in states.items()}
    for _ in range(_WEAR_OFF):
        time.sleep(0.02)
        again = {pid: _run_times(pid, known) for pid, known in states.items()}
        same = all(again[pid][1].get(pid) == found[pid][1].get(pid) for pid in found)
        found = again
        if same:
            break
    return found


def _run_times(pid: int, known: process_state.ProcessState) -> tuple[float, dict[int, int]]:
    return time.time(), {thread.tid: process_state.run_time(pid, thread.tid)[0] for thread in known.threads}


def _host_name() -> str:
    return os.uname().nodename
