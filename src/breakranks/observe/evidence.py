"""Join the evidence of a process from each source into one typed value: kernel threads, Python threads, C frames."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from breakranks.observe import process_state, pyspy_parse
from breakranks.observe.native_frames import NativeStacks
from breakranks.observe.process_table import ProcessEntry
from breakranks.snapshot.code_owner import own_functions
from breakranks.snapshot.introspection import Introspection, ThreadWait
from breakranks.snapshot.model import Call, FileLock, Frame, OpenFile, Problem, Sample, StackTable, Thread


class ProcessEvidence(NamedTuple):
    """The raw evidence of one process at one moment."""

    time: float
    state: process_state.ProcessState
    python: pyspy_parse.PythonStacks | None
    native: NativeStacks | None
    quiet: float
    quiet_ran: tuple[int, ...] | None


def sample_of(seen: ProcessEvidence, table: StackTable) -> Sample:
    """Join kernel threads, Python threads and native stacks by thread id."""
    python = {thread.tid: thread for thread in seen.python.threads} if seen.python else {}
    native = {thread.tid: thread for thread in seen.native.threads} if seen.native else {}
    threads = []
    for kernel_thread in seen.state.threads:
        known = python.get(kernel_thread.tid)
        deep = native.get(kernel_thread.tid)
        frames = known.frames if known is not None else ()
        merged = deep.frames if deep is not None and _agree(frames, deep.frames) else ()
        threads.append(
            Thread(
                tid=kernel_thread.tid,
                name=(known.name if known is not None else "") or kernel_thread.name,
                stack=table.add(frames),
                native=table.add(merged),
                state=kernel_thread.state,
                python=known is not None,
                gil=(known is not None and known.gil) or (deep is not None and deep.gil),
                call=_call(kernel_thread, known),
                # The time ready to run counts as well: on an overloaded machine an endless loop may have a CPU for only
                # a fifth of the time.
                ran=kernel_thread.ran + kernel_thread.waited,
                switches=kernel_thread.switches,
                idle=kernel_thread.idle,
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


def _call(kernel_thread: process_state.ThreadState, known: pyspy_parse.PythonThread | None) -> Call | None:
    """The call that a thread is in. A sleep may have ended between the reading of the call and of the stack."""
    if kernel_thread.call is not None and kernel_thread.call.is_sleep and known is not None and known.running:
        return None
    return kernel_thread.call


def _agree(python: tuple[Frame, ...], merged: tuple[Frame, ...]) -> bool:
    """Whether a native stack, read a moment later, still has the same calls.

    Lines may differ, and in a running thread the innermost calls may have begun or returned since.
    """
    before = [(frame.function, frame.file) for frame in python]
    later = [(frame.function, frame.file) for frame in merged if not frame.native]
    shared = min(len(before), len(later))
    return before[:shared] == later[:shared] and (shared > 0 or not before)


def problems_of(seen: list[ProcessEvidence]) -> Iterator[Problem]:
    """Why the newest sample has no stack, and the newest C frames could not be read."""
    if not seen:
        return
    last = seen[-1]
    if last.python is not None and last.python.problem is not None:
        yield last.python.problem
    native = [evidence.native for evidence in seen if evidence.native is not None]
    if native and native[-1].problem is not None:
        yield native[-1].problem


def lasting_state(seen: list[ProcessEvidence]) -> str:
    """The newest state, but "traced" only if all samples have it: a profiler may trace the process for an instant."""
    states = [evidence.state.state for evidence in seen]
    if states[-1] == "t":
        return next((state for state in reversed(states) if state != "t"), "t")
    return states[-1]


def cpu_percent(seen: list[ProcessEvidence], entry: ProcessEntry | None) -> float:
    if len(seen) > 1 and seen[-1].time > seen[0].time:
        return max(0.0, 100 * (seen[-1].state.cpu - seen[0].state.cpu) / (seen[-1].time - seen[0].time))
    if entry is None or not entry.started:
        return 0.0
    return 100 * entry.cpu / max(0.001, time.time() - entry.started)


def still_so(inside: Introspection, then: pyspy_parse.PythonStacks, now: pyspy_parse.PythonStacks) -> Introspection:
    """Drop what the introspection reports about threads whose stacks have changed between ``then`` and ``now``."""
    if then is now:
        return inside
    before = {thread.tid: thread.frames for thread in then.threads}
    after = {thread.tid: thread.frames for thread in now.threads}
    unchanged = {tid for tid, frames in before.items() if after.get(tid) == frames}
    same_calls = {tid for tid, frames in before.items() if own_functions(after.get(tid, ())) == own_functions(frames)}
    loader = inside.loader
    return replace(
        inside,
        waits=tuple(wait for wait in inside.waits if wait.tid in unchanged and _still_held(wait, after)),
        loops=tuple(loop for loop in inside.loops if loop.tid in unchanged),
        polled=tuple(file for file in inside.polled if file.tid in same_calls),
        # The data loader polls: its inner lines change, but the batch only if another function is reached.
        loader=loader if loader is not None and loader.tid in unchanged | same_calls else None,
    )


def _still_held(wait: ThreadWait, frames: dict[int, tuple[Frame, ...]]) -> bool:
    """Whether the owner of a lock is still in the function in which it took it."""
    owners = frames.get(wait.owner, ())
    return not wait.function or any((frame.function, frame.file) == (wait.function, wait.file) for frame in owners)


def with_paths(threads: tuple[Thread, ...], inside: Introspection | None) -> tuple[Thread, ...]:
    """Add the lock files that the introspection found to the hints of their threads."""
    if inside is None or not inside.polled:
        return threads
    result = []
    for thread in threads:
        paths = [file.path for file in inside.polled if file.tid == thread.tid]
        hints = {f"inside{number}.lock_filename": path for number, path in enumerate(paths)}
        result.append(thread._replace(hints={**thread.hints, **hints}) if hints else thread)
    return tuple(result)


def as_own(found: list[FileLock], inside: Introspection | None, opened: tuple[OpenFile, ...]) -> list[FileLock]:
    """Mark the lock files that the user's own code made. One that the process has open is dropped: it is the holder."""
    own = {file.path for file in inside.polled if file.kind == "own"} if inside is not None else set()
    open_paths = {file.path for file in opened}
    return [
        lock._replace(kind="own") if lock.path in own and lock.kind == "file" else lock
        for lock in found
        if lock.path not in own or lock.kind != "file" or lock.path not in open_paths
    ]
