"""The threads and frames of breakranks itself in a rank: an agent, a prompt, a question that is being answered.

They are no part of what the job does.
"""

from __future__ import annotations

from msgspec.structs import replace

from breakranks.snapshot.code_owner import is_agent, is_own
from breakranks.snapshot.model import Frame, Process, Snapshot, Thread

THREAD_NAME = "breakranks"
# What says that a rank stands at a prompt, or is held for one that does.
_TOLD = frozenset({"at_prompt", "held"})
_DEBUGGER = ("/bdb.py", "/pdb.py", "/cmd.py")


def is_agent_stack(frames: tuple[Frame, ...]) -> bool:
    """Whether a thread was started by breakranks: it began in code of breakranks."""
    for frame in frames:
        starter = frame.file.endswith("/threading.py") or (frame.file == "<string>" and frame.function == "<module>")
        if not frame.native and not starter:
            return is_agent(frame.file)
    return False


def is_agent_thread(snapshot: Snapshot, thread: Thread) -> bool:
    """The same of a thread. One that waits to begin has no Python frames yet, but its name."""
    frames = snapshot.stack(thread.stack)
    return is_agent_stack(frames) if frames else thread.name.startswith(THREAD_NAME)


def without_agents(snapshot: Snapshot) -> Snapshot:
    """The snapshot without the threads of breakranks. A main thread always stays."""
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
        replace(one, threads=(*one.threads[:1], *(t for t in one.threads[1:] if t.stack not in rows)))
        for one in process.samples
    )
    return replace(process, samples=samples, children=tuple(_without(one, rows) for one in process.children))


def before_agent(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames of the job that led into code of breakranks; all, where none did."""
    first = next((at for at, frame in enumerate(frames) if is_agent(frame.file)), len(frames))
    while 0 < first < len(frames) and _is_debugger(frames[first - 1].file):
        first -= 1
    return frames[:first]


def _is_debugger(file: str) -> bool:
    return file.endswith(_DEBUGGER) and not is_own(file)


def cut_agent(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """A stack without the frames of breakranks and what these called, up to code of the user's that they called.

    A frame that says that the rank stands at a prompt or is held stays.

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
    """Whether a thread of the job runs code of breakranks: the system call that it makes is not the job's."""
    python = [frame for frame in frames if not frame.native]
    last = next((at for at in range(len(python) - 1, -1, -1) if is_own(python[at].file)), -1)
    return any(is_agent(frame.file) for frame in python[last + 1 :])
