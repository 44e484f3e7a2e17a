"""Sampling the ranks of a job on this host, and the processes that they have started."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from breakranks.backend.job_evidence import JobEvidence
from breakranks.introspect.library_waits import may_wait
from breakranks.jobs.found_jobs import FoundJob
from breakranks.log import Log, milliseconds
from breakranks.observe import native_frames, process_state, pyspy_parse
from breakranks.observe.evidence import ProcessEvidence
from breakranks.observe.native_frames import NativeStacks
from breakranks.observe.process_table import ProcessEntry
from breakranks.observe.sigcont_guard import Watchdog
from breakranks.rankset import RankSet
from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.debugger_threads import before_agent
from breakranks.snapshot.model import Frame, Snapshot

if TYPE_CHECKING:
    # Imported only when a process is queried from inside or may not be traced, which most samples do not need.
    from breakranks.backend.agent_stacks import AgentStacks
    from breakranks.introspect.process_queries import SeenProcess

_log = Log("backend")
_SETTLE_ROUNDS = 5
_SETTLE_SECONDS = 0.02
# Being stopped and resumed costs a thread 25 to 65 µs of run time. One step of the smallest job takes 200 µs.
_INSPECTION_NANOSECONDS = 150_000
_SAMPLE_NANOSECONDS = 250_000
_VISIT_NANOSECONDS = 3_000_000  # with injected code
_NO_STACK = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class Sampler:
    """Samples one job of this host.

    >>> with Sampler(found) as sampler:      # doctest: +SKIP
    ...     sampler.sample()
    ...     sampler.sample(native=True)
    ...     snapshot = sampler.snapshot()

    With ``details`` helpers, open files, sockets and locks are sampled as well. Without, only the stacks of the ranks
    themselves are, which is all that ``stacks`` needs, and faster.
    """

    def __init__(
        self,
        found: FoundJob,
        *,
        ranks: RankSet | None = None,
        details: bool = True,
        keep: int = 0,
    ) -> None:
        self.keep = keep  # older samples are dropped; 0: none
        self.sampled = 0
        self._evidence = JobEvidence(found, ranks, details=details)
        self._clock = process_state.IdleClock() if details else None
        self._ran: dict[int, tuple[float, dict[int, int]]] = {}
        self._clean = True
        self._dog: Watchdog | None = None
        self._own_share = _SAMPLE_NANOSECONDS
        self._agents: AgentStacks | None = None
        self._by_agent: set[int] = set()  # processes that may not be traced, and have an agent

    def __enter__(self) -> Sampler:
        self._dog = Watchdog()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._dog is not None:
            self._dog.close(clean=self._clean and kind is None)

    def snapshot(self, keep: int | None = None) -> Snapshot:
        """Return a snapshot of every sample, or of the last ``keep`` samples."""
        return self._evidence.snapshot(keep)

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        """Take one more sample of every process (``samples`` 0: none). The state is read before the stack, because
        reading the stack wakes the process.

        ``recorders``: also read the flight recorder of each rank, lock owners and steps, with injected code. ``visit``:
        query ``all`` ranks without the recorder, or ``some``: ranks whose main thread waits for something that cannot
        be named from outside.
        """
        if samples:
            self._sample(native=native, recorders=recorders)
        if visit:
            self._query_inside(all_ranks=visit == "all")

    def _sample(self, *, native: bool, recorders: bool) -> None:
        assert self._dog is not None, "use it as a context manager"
        began = time.monotonic()
        evidence = self._evidence
        if evidence.details:
            evidence.read_table()
        pids = [rank.pid for rank in evidence.ranks] or self._launcher()
        readable = set(pids)
        if evidence.details:
            for entry, parent_is_rank in self._helpers():
                pids.append(entry.pid)
                if parent_is_rank and self._has_stack(entry):
                    readable.add(entry.pid)
        now = time.time()
        states = {pid: process_state.look(pid, self._clock) for pid in pids}
        quiet = {pid: self._quiet(pid, states[pid], now) for pid in pids}
        traced = [pid for pid in pids if pid in readable and states[pid].state not in "ZX"]
        for pid in traced:
            self._dog.guard(pid)
        gently = {pid for pid in traced if states[pid].state in process_state.STILL}
        python = self._python_stacks(traced, gently)
        for pid in self._by_agent.intersection(traced):
            self._agent_stacks().add_calls(pid, states[pid])
        deep: dict[int, NativeStacks] = {}
        by_agent = any(python[pid].problem is None for pid in self._by_agent if pid in python)
        evidence.without_c_frames = evidence.without_c_frames or (native and by_agent)
        if native:
            deep = self._sweep_native([pid for pid in traced if self._has_c_frames(pid, states[pid])], states, python)
        for pid in pids:
            evidence.seen.setdefault(pid, []).append(
                ProcessEvidence(now, states[pid], python.get(pid), deep.get(pid), *quiet[pid])
            )
        evidence.times.append(now)
        self.sampled += 1
        if self.keep:
            evidence.drop_samples(max(self.keep, 2))  # the next sample is compared with the last one
        self._own_share = _VISIT_NANOSECONDS if recorders else _SAMPLE_NANOSECONDS
        if recorders:
            self._visit(states, flight=True)
        if evidence.details:
            self._ran = _settled_run_times({pid: states[pid] for pid in pids})
        stacks = sum(process.problem is None for process in python.values())
        _log.info("sample taken", number=self.sampled, processes=len(pids), stacks=stacks, native=len(deep),
                  inside=recorders, ms=milliseconds(began))  # fmt: skip

    def _python_stacks(self, pids: list[int], gently: set[int]) -> dict[int, pyspy_parse.PythonStacks]:
        """Return the stacks by py-spy; of processes that may not be traced, from the agents in them."""
        variables = self._evidence.details
        traced = [pid for pid in pids if pid not in self._by_agent]
        found = pyspy_parse.sweep(traced, gently=gently.__contains__, locals=variables) if traced else {}
        refused = [pid for pid in pids if pid in self._by_agent or found[pid].denied]
        if refused:
            by_agent = self._agent_stacks().read(refused, details=variables)
            self._by_agent = set(by_agent)
            gone = [pid for pid in refused if pid not in by_agent and pid not in found]
            found.update(pyspy_parse.sweep(gone, locals=variables) if gone else {})
            found.update(by_agent)
        return found

    def _agent_stacks(self) -> AgentStacks:
        from breakranks.backend.agent_stacks import AgentStacks

        self._agents = self._agents or AgentStacks()
        return self._agents

    def _has_c_frames(self, pid: int, state: process_state.ProcessState) -> bool:
        return state.state not in process_state.STILL and pid not in self._by_agent

    # ---- which processes

    def _launcher(self) -> list[int]:
        """Return the launcher if it has started no rank: then what it waits for is the answer."""
        pid = self._evidence.found.job.launcher_pid
        return [pid] if pid and not self._evidence.found.ranks else []

    def _helpers(self) -> Iterator[tuple[ProcessEntry, bool]]:
        """Yield processes below the ranks that are not ranks themselves, and whether they may have a stack."""
        table = self._evidence.table
        ranks = {rank.pid for rank in self._evidence.found.ranks}
        for rank in self._evidence.ranks:
            queue = [entry for entry in table.children(rank.pid) if entry.pid not in ranks]
            for entry in queue:
                yield entry, True
                queue.extend(child for child in table.children(entry.pid) if child.pid not in ranks)

    def _has_stack(self, entry: ProcessEntry) -> bool:
        if not self._evidence.table.is_python(entry):
            return False
        command = " ".join(self._evidence.table.command(entry.pid))
        return not any(word in command for word in _NO_STACK)

    # ---- from inside

    def _query_inside(self, *, all_ranks: bool) -> None:
        ranks = self._evidence.ranks
        pids = [rank.pid for rank in ranks if all_ranks or may_wait(rank.pid, self._main_frames(rank.pid))]
        if pids:
            self._visit({pid: seen[-1].state for pid, seen in self._evidence.seen.items()}, flight=False, only=pids)

    def _main_frames(self, pid: int) -> tuple[Frame, ...]:
        python = self._evidence.seen[pid][-1].python
        threads = python.threads if python is not None else ()
        return before_agent(next((thread.frames for thread in threads if thread.tid == pid), ()))

    def _visit(
        self, states: dict[int, process_state.ProcessState], *, flight: bool, only: list[int] | None = None
    ) -> None:
        from breakranks.backend.agent_payloads import ask_many
        from breakranks.introspect import process_queries

        pids = [rank.pid for rank in self._evidence.ranks] if only is None else only
        done: set[int] = set()
        while pids:
            pids = [pid for pid in pids if pid in states and states[pid].state not in (*process_state.STILL, "Z", "X")]
            held = {pid: name for pid in pids if (name := self._gil_holder(pid))}
            results = process_queries.visit(
                {pid: self._seen_process(pid) for pid in pids}, held, self._dog, flight=flight, ask=ask_many
            )
            self._evidence.add_visits(results)
            done |= set(pids)
            # After the ranks, the helpers that they wait for.
            pids, flight = [pid for pid in process_queries.awaited_workers(results) if pid not in done], False

    def _seen_process(self, pid: int) -> SeenProcess:
        """Return a process as the newest sample has it."""
        from breakranks.introspect.process_queries import SeenProcess
        from breakranks.introspect.wanted_variables import SeenThread

        entry = self._evidence.table.get(pid)
        python = self._evidence.seen[pid][-1].python
        ordered = sorted(python.threads, key=lambda thread: thread.tid != pid) if python else ()  # main thread first
        threads = tuple(SeenThread(thread.tid, frames) for thread in ordered if (frames := before_agent(thread.frames)))
        return SeenProcess(entry.started if entry is not None else 0.0, threads)

    def _gil_holder(self, pid: int) -> str:
        """Return the thread that was blocked with the GIL in both newest samples, or "". No Python can run then."""
        names = set()
        for evidence in self._evidence.seen[pid][-2:]:
            threads = evidence.python.threads if evidence.python is not None else ()
            owner = next((thread for thread in threads if thread.gil), None)
            blocked = {thread.tid for thread in evidence.state.threads if thread.state in "SD"}
            names.add(owner.name if owner is not None and owner.tid in blocked else "")
        return names.pop() if len(names) == 1 else ""

    # ---- C frames, and what ran

    def _sweep_native(
        self,
        pids: list[int],
        states: dict[int, process_state.ProcessState],
        python: dict[int, pyspy_parse.PythonStacks],
    ) -> dict[int, NativeStacks]:
        """Return C frames. Reading them takes 0.1 s or more of a process's time, so of the processes at the same place
        of the same library one is read for all. ``stacks`` reads each."""
        stands_for = _representatives(pids, states, python) if self._evidence.details else {pid: pid for pid in pids}
        stacks, clean = native_frames.sweep(dict.fromkeys(stands_for.values()))
        self._evidence.native = True
        self._clean = self._clean and clean
        return {
            pid: stacks[other]
            if pid == other
            else native_frames.borrow(stacks[other], _tids(states, pid), _tids(states, other))
            for pid, other in stands_for.items()
        }

    def _quiet(self, pid: int, now: process_state.ProcessState, at: float) -> tuple[float, tuple[int, ...] | None]:
        """Return the seconds since the last sample ended, in which breakranks did not touch the process, and the
        threads that ran in them for longer than an inspection by another tool would make them."""
        before = self._ran.get(pid)
        if before is None:
            return 0.0, None
        since, ran = before
        # A step may pass unseen while a sample is taken, so the whole time since the last sample counts as well.
        start = {thread.tid: thread.ran for thread in self._evidence.seen[pid][-1].state.threads}
        return at - since, tuple(
            thread.tid
            for thread in now.threads
            if thread.ran - ran.get(thread.tid, 0) > _INSPECTION_NANOSECONDS
            or thread.ran - start.get(thread.tid, 0) > self._own_share
        )


def _tids(states: dict[int, process_state.ProcessState], pid: int) -> tuple[tuple[int, str], ...]:
    return tuple((thread.tid, thread.name) for thread in states[pid].threads)


def _representatives(
    pids: list[int], states: dict[int, process_state.ProcessState], python: dict[int, pyspy_parse.PythonStacks]
) -> dict[int, int]:
    """Return for each process the process whose C frames are read for it.

    It is another one only if the innermost frame is a library's, because then Python's stack already determines the C
    frames. A process that called C from its own code is always read itself.
    """
    first: dict[object, int] = {}
    chosen = {}
    for pid in pids:
        threads = python[pid].threads if pid in python else ()
        main = next((thread for thread in threads if thread.tid == pid), None)
        if main is None or not main.frames or is_own(main.frames[-1].file):
            chosen[pid] = pid
            continue
        calls = tuple((t.name, t.state, t.call.name if t.call else "") for t in states[pid].threads)
        key = (tuple(thread.frames for thread in threads), calls)
        chosen[pid] = first.setdefault(key, pid)
    return chosen


def _settled_run_times(states: dict[int, process_state.ProcessState]) -> dict[int, tuple[float, dict[int, int]]]:
    """Return how long each thread has run, once the effect of the sample has worn off.

    A thread that was stopped must run for a moment to return to its wait, which comes late on a busy machine. So the
    times are read again and again, until no main thread changes or enough has been waited.
    """
    times = {pid: _run_times(pid, state) for pid, state in states.items()}
    for _ in range(_SETTLE_ROUNDS):
        time.sleep(_SETTLE_SECONDS)
        again = {pid: _run_times(pid, state) for pid, state in states.items()}
        same = all(again[pid][1].get(pid) == times[pid][1].get(pid) for pid in times)
        times = again
        if same:
            break
    return times


def _run_times(pid: int, state: process_state.ProcessState) -> tuple[float, dict[int, int]]:
    return time.time(), {thread.tid: process_state.run_time(pid, thread.tid)[0] for thread in state.threads}
