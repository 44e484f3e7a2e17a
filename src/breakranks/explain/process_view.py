"""What a process is doing, whether it moves, and for how long it has been where it is.

This takes at least two samples. In the span between them breakranks does not touch the process, so a thread that used
no CPU in it did not run. Together with the time since it last ran before the first sample, that tells a rank that hangs
from one that was at the same line twice by chance.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from breakranks.explain import wait_chains
from breakranks.explain.activity import BUSY_SHARE, Activity, ActivityReader, naps
from breakranks.explain.finding_parts import Doing
from breakranks.explain.frame_meanings import JOINS, LOCKS, PEER
from breakranks.snapshot.code_owner import own_functions
from breakranks.snapshot.model import PROGRESS, Frame, Process, Sample, Snapshot, Thread

_POLLING_SHARE = 0.03
_MIN_SPAN_SECONDS = 0.05
_ANOTHER_SLEEP_SECONDS = 0.05
_ACTIVE_FIRST = (*sorted(PEER), "prompt", "held", "file-lock", "subprocess", "data-loading", "helper-wait", "compile",
                 "io", "socket", "checkpoint", "compute", "gc", "import", "sleep")  # fmt: skip
_PASSIVE = frozenset({"thread-wait", "idle", "event-loop", "exit", "gil-wait", "unknown"})


class ProcessView(NamedTuple):
    """What is known of one process.

    ``thread`` is the thread that matters: the main thread, or the one that the main thread waits for. In the second
    case ``via`` is the activity of the main thread. ``stands`` is for how many seconds the thread has been where it is,
    as far as known; 0 if it moved. ``busy`` is the share of a CPU that it used.
    """

    process: Process
    activity: Activity
    thread: Thread | None
    via: Activity | None
    threads: tuple[tuple[Thread, Activity], ...]
    stands: float
    moved: bool
    still: bool
    busy: float
    moves: int = 0
    others_move: bool = False
    # It ran in most of the spans between samples: data arrives, or it polls.
    wakes: bool = False
    # When it first woke from a sleep and went to sleep again in the same place, as far as known; 0: never.
    woke: float = 0.0
    # The plain values in its frames change: it counts or collects.
    progresses: bool = False

    @property
    def sleeps_again(self) -> bool:
        return bool(self.woke)

    @property
    def where(self) -> Frame | None:
        return self.activity.where

    @property
    def doing(self) -> Doing:
        """The activity as plain data, for a finding."""
        return self.activity.doing(self.stands, self.left)

    @property
    def state(self) -> str:
        return self.process.state

    @property
    def left(self) -> float | None:
        """Seconds until the sleep or timeout of the thread ends."""
        call = self.thread.call if self.thread is not None else None
        if call is None or (self.activity.word == "sleep" and call.name == "futex"):
            return None  # its stack was read after its call: it has gone to sleep since
        return call.left


def evidence_key(process: Process) -> object:
    """Return a key that is equal for processes with equal views, except for exact times and pids."""
    parts: list[object] = [process.state]
    for sample in process.samples:
        ran = sample.quiet_ran or ()
        for t in sample.threads:
            call = t.call
            parts += (
                t.stack, t.native, t.state, t.gil, t.python, t.tid in ran,
                None if call is None else (call.name, call.left is None),
                _plain_hints(t.hints) if t.hints else None,
            )  # fmt: skip
            if call is not None and t.python:
                parts += (_about(process, call.fd), int(call.left or 0).bit_length())
        parts += (sample.state in "TtZX", int(sample.threads[0].idle or 0).bit_length() if sample.threads else -1)
    parts.append(_load(process))
    parts.append(_progress(process))
    if process.locks:
        parts.append(tuple((lock.path, lock.holder, lock.kind) for lock in process.locks))
    if process.children:
        parts.append(helpers_key(process))
    parts.append(wait_chains.key(process))
    return tuple(parts)


def _plain_hints(hints: dict[str, str]) -> object:
    return tuple(item for item in hints.items() if not item[0].endswith(PROGRESS))


def _progress(process: Process) -> object:
    """Whether the values in the frames of the main thread changed. The marks themselves differ between ranks."""
    marks = {tuple(s.threads[0].hints.items()) for s in process.samples if s.threads and s.threads[0].hints}
    return len(marks) > 1


def helpers_key(process: Process) -> object:
    """Return a key for what the helpers of a process do."""
    return tuple(
        (
            child.state,
            tuple(sample.state in "TtZX" for sample in child.samples[-2:]),
            child.python,
            child.samples[-1].threads[0].stack if _threads(child) else 0,
            helpers_key(child),
        )
        for child in process.children
    )


def _threads(process: Process) -> tuple[Thread, ...]:
    return process.samples[-1].threads if process.samples else ()


def _about(process: Process, fd: int) -> str:
    if fd < 0:
        return ""
    return next((f.path for f in process.files if f.fd == fd), "") or next(
        (s.peer for s in process.sockets if s.fd == fd), ""
    )


def _load(process: Process) -> tuple[int, ...]:
    """Return each thread's share of a CPU, in three grades."""
    if len(process.samples) < 2:
        return ()
    first, last = process.samples[0], process.samples[-1]
    span = last.time - first.time
    if span <= 0:
        return ()
    before = {thread.tid: thread.ran for thread in first.threads}
    shares = ((t.ran - before.get(t.tid, t.ran)) / 1e9 / span for t in last.threads)
    return tuple(2 if share >= BUSY_SHARE else 1 if share >= _POLLING_SHARE else 0 for share in shares)


def inspect_process(
    snapshot: Snapshot, reader: ActivityReader, process: Process, prefer: frozenset[str] = frozenset()
) -> ProcessView:
    """Return the view of a process. A thread with a name in ``prefer`` is taken to be the one that matters."""
    sample = next((s for s in reversed(process.samples) if s.threads), None)
    if sample is None:
        return ProcessView(
            process=process,
            activity=Activity(word="unknown"),
            thread=None,
            via=None,
            threads=(),
            stands=0.0,
            moved=False,
            still=False,
            busy=0.0,
        )
    deep = _deepest(process.samples, sample)
    threads = tuple((thread, reader.read(process, deep, thread)) for thread in deep.threads if _worth(thread, deep))
    thread, activity, via = _choose(process, threads, prefer)
    if via is not None and via.word == "sleep" and _main_moves(process.samples):
        # The main thread makes progress, so it does not wait for the other thread.
        thread, activity, via = *threads[0], None
    if thread is None:
        return ProcessView(
            process=process,
            activity=Activity(word="unknown"),
            thread=None,
            via=None,
            threads=threads,
            stands=0.0,
            moved=False,
            still=False,
            busy=0.0,
        )
    moved, still, stands, busy = _movement(snapshot, process.samples, thread.tid, activity)
    moves = _moves(snapshot, process.samples, thread.tid, activity)
    others = activity.word in ("thread-wait", "exit") and _others_move(process.samples, thread.tid)
    seen = [(sample, t) for sample in process.samples for t in sample.threads if t.tid == thread.tid]
    return ProcessView(
        process=process, activity=activity, thread=thread, via=via, threads=threads, stands=stands,
        moved=moved, still=still, busy=busy, moves=moves, others_move=others,
        wakes=_mostly(_woken(seen)), woke=_woke(seen), progresses=_counts(seen),
    )  # fmt: skip


def _main_moves(samples: tuple[Sample, ...]) -> bool:
    """Whether the main thread was seen at different places, or with different values."""
    return len({(s.threads[0].stack, tuple(s.threads[0].hints.items())) for s in samples if s.threads}) > 1


def _worth(thread: Thread, sample: Sample) -> bool:
    return thread.python or thread.tid == sample.threads[0].tid


def _deepest(samples: tuple[Sample, ...], last: Sample) -> Sample:
    """Return the newest sample, with the C frames of an earlier one where the thread has not moved since."""
    native: dict[int, Thread] = {}
    for sample in samples:
        for thread in sample.threads:
            if thread.native:
                native[thread.tid] = thread
    merged = []
    for thread in last.threads:
        other = native.get(thread.tid)
        if not thread.native and other is not None and other.stack == thread.stack:
            thread = thread._replace(native=other.native)
        merged.append(thread)
    return last._replace(threads=tuple(merged))


def _ends_active(others: tuple[wait_chains.ChainStep, ...]) -> bool:
    """Whether a chain leads to another thread that is active."""
    return bool(others) and others[-1].wait is None and others[-1].activity.word not in _PASSIVE


def keeps_moving(process: Process, tid: int) -> bool:
    """Whether a thread was seen at different places, or ran while breakranks did not touch it.

    Of several spans, one does not count: a blocked thread may run for a moment on a page fault, or when the machine
    stood still.
    """
    seen = [(sample, thread) for sample in process.samples for thread in sample.threads if thread.tid == tid]
    woken = _woken(seen)
    return len({thread.stack for _, thread in seen if thread.stack}) > 1 or sum(woken) > (len(woken) > 2)


def _choose(
    process: Process,
    threads: tuple[tuple[Thread, Activity], ...],
    prefer: frozenset[str],
) -> tuple[Thread | None, Activity, Activity | None]:
    """Return the thread that shows why the process is where it is, its activity, and that of the main thread if it is
    another."""
    if not threads:
        return None, Activity(word="unknown"), None
    main, activity = threads[0]
    for other, its in threads[1:]:
        if other.name in prefer:
            return other, its, activity
    if activity.word == "sleep" and (naps(process, main) or (main.call is not None and main.call.left is None)):
        # A main thread that sleeps briefly or pauses while another thread is in a collective only keeps the process
        # alive.
        busy = next(((t, a) for t, a in threads[1:] if a.word in PEER), None)
        return (*busy, activity) if busy is not None else (main, activity, None)
    if activity.word not in ("thread-wait", "exit", "event-loop", "unknown"):
        return main, activity, None
    chain = wait_chains.follow(process, threads, main.tid)
    if chain is not None and (chain.back is not None or _ends_active(chain.steps[1:])):
        # Introspection shows which thread it waits for.
        end = chain.end
        if chain.back is None and (end.activity.word in (*PEER, "prompt", "held") or chain.joins):
            return end.thread, end.activity, activity
        return main, activity, None
    others = [(t, a) for t, a in threads[1:] if a.word not in _PASSIVE]
    if activity.op not in JOINS:
        # A thread that sleeps in the background says nothing about a lock, a queue or an event.
        others = [(t, a) for t, a in others if a.word != "sleep"]
    if activity.word == "thread-wait" and activity.op in LOCKS:
        # A thread that also waits for a lock matters more than one that sleeps in the background.
        waiting = [a for _, a in threads[1:] if a.word == "thread-wait" and a.op == activity.op]
        if waiting:
            return main, activity, None
    if not others:
        return main, activity, None
    best, its = min(others, key=lambda pair: _ACTIVE_FIRST.index(pair[1].word) if pair[1].word in _ACTIVE_FIRST else 99)
    return best, its, activity


def _movement(
    snapshot: Snapshot, samples: tuple[Sample, ...], tid: int, activity: Activity
) -> tuple[bool, bool, float, float]:
    """Return whether the thread moved, whether it never ran, for how long it has been there, and its share of a CPU."""
    seen = [(sample, thread) for sample in samples for thread in sample.threads if thread.tid == tid]
    if not seen:
        return False, False, 0.0, 0.0
    span = seen[-1][0].time - seen[0][0].time
    busy = (seen[-1][1].ran - seen[0][1].ran) / 1e9 / span if span > 0 else 0.0
    quiet = _woken(seen)
    still = bool(quiet) and not any(quiet)
    begin = _since(snapshot, seen, activity)
    if begin == len(seen) - 1 and len(seen) > 1:
        return True, False, 0.0, busy
    moved = begin > 0
    first_sample, first = seen[begin]
    before = (first.idle or 0.0) if begin == 0 else 0.0
    return moved, still, before + seen[-1][0].time - first_sample.time, busy


def _woken(seen: list[tuple[Sample, Thread]]) -> list[bool]:
    """For each span in which breakranks did not touch the process: whether the thread ran in it."""
    return [
        thread.tid in sample.quiet_ran
        for sample, thread in seen
        if sample.quiet_ran is not None and sample.quiet > _MIN_SPAN_SECONDS
    ]


def _woke(seen: list[tuple[Sample, Thread]]) -> float:
    """Return when the first sleep ended that was followed by another: between two samples its end moved."""
    ends = [sample.time + t.call.left for sample, t in seen if t.call is not None and t.call.left is not None]
    return next((before for before, later in pairwise(ends) if later - before > _ANOTHER_SLEEP_SECONDS), 0.0)


def _counts(seen: list[tuple[Sample, Thread]]) -> bool:
    """Whether the plain values of a function changed while it was on the stack."""
    marks: dict[str, set[str]] = {}
    for _, thread in seen:
        for name, mark in thread.hints.items():
            if name.endswith(PROGRESS):
                marks.setdefault(name, set()).add(mark)
    return any(len(values) > 1 for values in marks.values())


def _mostly(woken: list[bool]) -> bool:
    return len(woken) > 1 and sum(woken) >= 0.6 * len(woken)


def _others_move(samples: tuple[Sample, ...], tid: int) -> bool:
    """Whether another Python thread of the process changes its place, or uses the CPU."""
    seen: dict[int, set[int]] = {}
    ran: dict[int, list[int]] = {}
    for sample in samples:
        for thread in sample.threads:
            if thread.python and thread.tid != tid:
                seen.setdefault(thread.tid, set()).add(thread.stack)
                ran.setdefault(thread.tid, []).append(thread.ran)
    span = samples[-1].time - samples[0].time
    busy = any(values[-1] - values[0] > _POLLING_SHARE * 1e9 * span for values in ran.values()) if span > 0 else False
    return busy or any(len(stacks) > 1 for stacks in seen.values())


def _blocks(thread: Thread) -> bool:
    return thread.call is not None and thread.call.name == "futex" and thread.call.left is None


def _since(snapshot: Snapshot, seen: list[tuple[Sample, Thread]], activity: Activity) -> int:
    """Return the index of the sample since which the thread has been where it is now."""
    index = len(seen) - 1
    while index > 0 and not _has_moved(snapshot, *seen[index - 1], *seen[index], activity):
        index -= 1
    return index


def _has_moved(
    snapshot: Snapshot, earlier: Sample, before: Thread, sample: Sample, after: Thread, activity: Activity
) -> bool:
    """Whether the thread moved between two samples.

    Its stack or its loop counters changed; or it waits for ranks, and the timeout of its wait was renewed; or the wait
    has no timeout, and the thread ran for longer than a sample takes: then it was released and came back.
    """
    if _mark(snapshot, before, activity) != _mark(snapshot, after, activity):
        return True
    if activity.word in PEER and _waits_anew(earlier, before, sample, after):
        return True
    ran = sample.quiet_ran is not None and after.tid in sample.quiet_ran
    return ran and activity.word in PEER and _blocks(after)


def _waits_anew(earlier: Sample, before: Thread, sample: Sample, after: Thread) -> bool:
    """Whether the time at which a wait gives up has moved: then it is another wait.

    Only a futex keeps that time itself. For other calls it is computed from when the thread last ran, and taking a
    sample makes the thread run.
    """
    if before.call is None or after.call is None or before.call.left is None or after.call.left is None:
        return False
    if before.call.name != "futex" or after.call.name != "futex":
        return False
    return sample.time + after.call.left - (earlier.time + before.call.left) > _ANOTHER_SLEEP_SECONDS


def _moves(snapshot: Snapshot, samples: tuple[Sample, ...], tid: int, activity: Activity) -> int:
    """Return in how many spans between samples the thread moved, or was released and came back."""
    seen = [(sample, thread) for sample in samples for thread in sample.threads if thread.tid == tid]
    return sum(_has_moved(snapshot, *before, *after, activity) for before, after in pairwise(seen))


def _mark(snapshot: Snapshot, thread: Thread, activity: Activity) -> object:
    """Return what must stay the same for a thread that does not move.

    For one that waits for ranks: the whole stack and the loop counters of its frames. For one that computes or polls:
    only its functions in the user's code, because the lines in them are expected to change.
    """
    if activity.word in PEER:
        return thread.stack, tuple(sorted(thread.hints.items()))
    return own_functions(snapshot.stack(thread.stack))
