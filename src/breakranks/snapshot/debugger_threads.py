"""The threads and frames of breakranks itself in a rank: an agent, a prompt, code that is injected for introspection.

They are not part of the job.
"""

from __future__ import annotations

from dataclasses import replace

from breakranks.snapshot.code_owner import is_agent, is_own
from breakranks.snapshot.model import Frame, Process, Snapshot, Thread

THREAD_NAME = "breakranks"
# The frames that show that a rank is at a prompt, or held while another one is.
_TOLD = frozenset({"at_prompt", "held"})
_DEBUGGER = ("/bdb.py", "/pdb.py", "/cmd.py")


def is_agent_stack(frames: tuple[Frame, ...]) -> bool:
    """Whether a thread was started by breakranks: its outermost code is that of breakranks."""
    for frame in frames:
        starter = frame.file.endswith("/threading.py") or (frame.file == "<string>" and frame.function == "<module>")
        if not frame.native and not starter:
            return is_agent(frame.file)
    return False


def is_agent_thread(snapshot: Snapshot, thread: Thread) -> bool:
    """Whether a thread belongs to breakranks. A thread that has not begun has no Python frames yet, but its name."""
    frames = snapshot.stack(thread.stack)
    return is_agent_stack(frames) if frames else thread.name.startswith(THREAD_NAME)


def without_agents(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without the threads of breakranks. A main thread always stays."""
    frames = frozenset(at for at, frame in enumerate(snapshot.frames) if is_agent(frame.file))
    rows = frozenset(
        row
        for row, stack in enumerate(snapshot.stacks)
        if not frames.isdisjoint(stack) and is_agent_stack(snapshot.stack(row))
    )
    if not rows:
        return snapshot
    ranks = tuple(replace(rank, process=_without(rank.process, rows)) for rank in snapshot.ranks)
    return replace(snapshot, ranks=ranks)


def _without(process: Process, rows: frozenset[int]) -> Process:
    samples = tuple(
        sample._replace(threads=(*sample.threads[:1], *(t for t in sample.threads[1:] if t.stack not in rows)))
        for sample in process.samples
    )
    return replace(process, samples=samples, children=tuple(_without(child, rows) for child in process.children))


def before_agent(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames of the job that led into code of breakranks, or all if none did."""
    first = next((at for at, frame in enumerate(frames) if is_agent(frame.file)), len(frames))
    while 0 < first < len(frames) and _is_debugger(frames[first - 1].file):
        first -= 1
    return frames[:first]


def _is_debugger(file: str) -> bool:
    return file.endswith(_DEBUGGER) and not is_own(file)


def cut_agent(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return a stack without the frames of breakranks and of what they called, up to code of the user that they called.

    A frame that shows that the rank is at a prompt or held stays.

    >>> cut_agent((Frame("main", "/a.py", 3), Frame("hit", "/x/breakranks/rank/a.py", 1), Frame("s", "<c>", 1)))
    (Frame(function='main', file='/a.py', line=3, native=False), Frame(function='s', file='<c>', line=1, native=False))
    """
    kept: list[Frame] = []
    inside = False
    for frame in frames:
        if not frame.native and is_agent(frame.file):
            while kept and not inside and _is_debugger(kept[-1].file):
                kept.pop()
            inside = True
            if frame.function in _TOLD:
                kept.append(frame)
        elif not inside or (not frame.native and is_own(frame.file)):
            inside = False
            kept.append(frame)
    return tuple(kept) or frames


def is_in_agent(frames: tuple[Frame, ...]) -> bool:
    """Whether a thread of the job runs code of breakranks: then its system call is not one of the job."""
    python = [frame for frame in frames if not frame.native]
    last = next((at for at in range(len(python) - 1, -1, -1) if is_own(python[at].file)), -1)
    return any(is_agent(frame.file) for frame in python[last + 1 :])
