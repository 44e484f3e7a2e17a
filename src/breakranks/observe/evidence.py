"""From what each source said of a process to one typed value: the kernel's threads, Python's, the C frames."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from breakranks.observe import process_state, pyspy_parse
from breakranks.observe.native_frames import NativeStacks
from breakranks.observe.process_table import ProcessEntry
from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.introspection import Introspection, ThreadWait
from breakranks.snapshot.model import Call, FileLock, Frame, OpenFile, Problem, Sample, StackTable, Thread


class ProcessEvidence(NamedTuple):
    """One process at one moment, raw."""

    time: float
    state: process_state.ProcessState
    python: pyspy_parse.PythonStacks | None
    native: NativeStacks | None
    quiet: float
    quiet_ran: tuple[int, ...] | None


def sample_of(seen: ProcessEvidence, table: StackTable) -> Sample:
    """Join the three sources by thread id: the kernel's threads, Python's, and the native stacks."""
    python = {thread.tid: thread for thread in seen.python.threads} if seen.python else {}
    native = {thread.tid: thread for thread in seen.native.threads} if seen.native else {}
    threads = []
    for one in seen.state.threads:
        known = python.get(one.tid)
        deep = native.get(one.tid)
        frames = known.frames if known is not None else ()
        merged = deep.frames if deep is not None and _agree(frames, deep.frames) else ()
        threads.append(
            Thread(
                tid=one.tid,
                name=(known.name if known is not None else "") or one.name,
                stack=table.add(frames),
                native=table.add(merged),
                state=one.state,
                python=known is not None,
                gil=(known is not None and known.gil) or (deep is not None and deep.gil),
                call=_call(one, known),
                # Waiting counts: on a machine with more work than CPUs an endless loop runs a fifth of the time.
                ran=one.ran + one.waited,
                switches=one.switches,
                idle=one.idle,
                hints=known.hints if known is not None else {},
            )
        )
    return Sample(
        time=seen.time,
        state=seen.state.state,
        cpu=seen.state.cpu,
        read_bytes=seen.state.read_bytes,
        write_bytes=seen.state.write_bytes,
        threads=tuple(threads),
        quiet=seen.quiet,
        quiet_ran=seen.quiet_ran,
    )


def _call(one: process_state.ThreadState, known: pyspy_parse.PythonThread | None) -> Call | None:
    """The call that a thread is in. It was read before the stack: a sleep may have ended in between."""
    if one.call is not None and one.call.is_sleep and known is not None and known.running:
        return None
    return one.call


def _agree(python: tuple[Frame, ...], merged: tuple[Frame, ...]) -> bool:
    """Whether a native stack, taken a moment later, is still of the same calls. Lines may have moved on, and the
    innermost calls of a thread that runs may have come or gone."""
    before = [(frame.function, frame.file) for frame in python]
    later = [(frame.function, frame.file) for frame in merged if not frame.native]
    shared = min(len(before), len(later))
    return before[:shared] == later[:shared] and (shared > 0 or not before)


def problems_of(seen: list[ProcessEvidence]) -> Iterator[Problem]:
    """Why the newest sample lacks a stack, if it does."""
    if not seen:
        return
    last = seen[-1]
    if last.python is not None and last.python.problem is not None:
        yield last.python.problem
    for one in seen:
        if one.native is not None and one.native.problem is not None:
            yield one.native.problem


def lasting_state(seen: list[ProcessEvidence]) -> str:
    """The newest state; but "traced" only if it was so each time: a profiler may just have looked."""
    states = [one.state.state for one in seen]
    if states[-1] == "t":
        return next((one for one in reversed(states) if one != "t"), "t")
    return states[-1]


def cpu_percent(seen: list[ProcessEvidence], entry: ProcessEntry | None) -> float:
    if len(seen) > 1 and seen[-1].time > seen[0].time:
        return max(0.0, 100 * (seen[-1].state.cpu - seen[0].state.cpu) / (seen[-1].time - seen[0].time))
    if entry is None or not entry.started:
        return 0.0
    return 100 * entry.cpu / max(0.001, time.time() - entry.started)


def still_so(inside: Introspection, then: pyspy_parse.PythonStacks, now: pyspy_parse.PythonStacks) -> Introspection:
    """What a process said when its stacks were ``then``, without what is about threads that have gone on since."""
    if then is now:
        return inside
    before = {one.tid: one.frames for one in then.threads}
    after = {one.tid: one.frames for one in now.threads}
    stand = {tid for tid, frames in before.items() if after.get(tid) == frames}
    stay = {tid for tid, frames in before.items() if _calls(after.get(tid, ())) == _calls(frames)}
    loader = inside.loader
    return replace(
        inside,
        waits=tuple(one for one in inside.waits if one.tid in stand and _still_held(one, after)),
        loops=tuple(one for one in inside.loops if one.tid in stand),
        polled=tuple(one for one in inside.polled if one.tid in stay),
        # It polls: the lines below change, and the batch only when another function is reached.
        loader=loader if loader is not None and loader.tid in stand | stay else None,
    )


def _calls(frames: tuple[Frame, ...]) -> list[tuple[str, str]]:
    """Where a thread is, but for what it calls in passing: a loop that polls is now in ``sleep``, now in ``stat``."""
    return [(frame.function, frame.file) for frame in frames if is_own(frame.file)]


def _still_held(one: ThreadWait, frames: dict[int, tuple[Frame, ...]]) -> bool:
    """Whether the owner of a lock is still in the function in which it took it."""
    mine = frames.get(one.owner, ())
    return not one.function or any((f.function, f.file) == (one.function, one.file) for f in mine)


def with_paths(threads: tuple[Thread, ...], inside: Introspection | None) -> tuple[Thread, ...]:
    """Threads with the lock files that the process itself has named, as if they had been seen from outside."""
    if inside is None or not inside.polled:
        return threads
    made = []
    for thread in threads:
        mine = [one.path for one in inside.polled if one.tid == thread.tid]
        named = {f"inside{number}.lock_filename": path for number, path in enumerate(mine)}
        made.append(replace(thread, hints={**thread.hints, **named}) if named else thread)
    return tuple(made)


def as_own(found: list[FileLock], inside: Introspection | None, opened: tuple[OpenFile, ...]) -> list[FileLock]:
    """Lock files of the user's own making told from libraries'; one that the process has open it holds itself."""
    own = {one.path for one in inside.polled if one.kind == "own"} if inside is not None else set()
    mine = {file.path for file in opened}
    return [
        replace(lock, kind="own") if lock.path in own and lock.kind == "file" else lock
        for lock in found
        if lock.path not in own or lock.kind != "file" or lock.path not in mine
    ]
