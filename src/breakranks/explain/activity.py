"""What a thread is doing, from its stack, its system call and the files of its process."""

from __future__ import annotations

from typing import NamedTuple

from breakranks.explain.finding_parts import Doing, where_of
from breakranks.explain.frame_meanings import GLOO_OPS, GLOO_WORK, UNNAMED_COLLECTIVE, FrameMeaning, FrameTable
from breakranks.snapshot.code_owner import innermost_own, is_own, native_tail, own_functions
from breakranks.snapshot.debugger_threads import cut_agent, is_in_agent
from breakranks.snapshot.model import Call, Frame, Process, Sample, Snapshot, Thread

_SLEEPS = frozenset({"clock_nanosleep", "nanosleep", "pause"})
_READS = frozenset(
    "read write pread64 pwrite64 readv writev preadv pwritev fsync fdatasync ftruncate fallocate splice sendfile"
    " open openat stat lstat newfstatat fstat close rename unlink mkdir access msync sync syncfs ioctl".split()
)
_NETWORK = frozenset("connect accept accept4 sendto recvfrom sendmsg recvmsg".split())
_POLL_SECONDS = 10.0
_UNREAD_SECONDS = 1e9  # the end of a sleep, from memory that the thread has used for something else since
BUSY_SHARE = 0.5  # of a CPU, from which on a thread works
_WAITS = frozenset({"wait4", "waitid"})
# C frames are not read with every sample. A thread that sleeps now was in these for an instant.
_PASSING = frozenset({"gil-wait", "gc"})


class Activity(NamedTuple):
    """What a thread is doing. ``word`` is one of ``frame_meanings.ACTIVITIES``; ``op`` says which (``all_reduce``,
    ``FileBaton``).

    ``where`` is the innermost frame of the user's code. ``about`` is the file, socket or terminal that the thread is
    blocked on, ``peer`` the process at the other end of a pipe. ``context`` is the larger operation (loading data,
    checkpointing, backward).
    """

    word: str
    op: str = ""
    where: Frame | None = None
    call: Call | None = None
    about: str = ""
    peer: str = ""
    kind: str = ""
    context: str = ""
    tail: tuple[Frame, ...] = ()

    @property
    def verb(self) -> str:
        """What the thread does to the file, by the name of the system call."""
        name = self.call.name if self.call is not None else self.op
        if name in ("open", "openat"):
            return "opening"
        return "writing" if "write" in name or "sync" in name else "reading"

    def doing(self, stands: float = 0.0, left: float | None = None) -> Doing:
        """Return the activity as plain data, for a finding."""
        return Doing(
            word=self.word,
            op=self.op,
            about=self.about,
            peer=self.peer,
            verb=self.verb,
            context=self.context,
            where=where_of(self.where),
            stands=stands,
            left=left,
        )


class _Opened(NamedTuple):
    """What a file descriptor refers to: a path, a peer's address, a pipe and the process at its other end."""

    about: str = ""
    peer: str = ""
    kind: str = ""


class ActivityReader:
    """Reads the threads of one snapshot. Each different stack is interpreted once."""

    def __init__(self, snapshot: Snapshot, table: FrameTable | None = None) -> None:
        self._snapshot = snapshot
        self._table = table or FrameTable()
        self._known: dict[tuple[int, int, str, int], Activity] = {}

    def read(self, process: Process, sample: Sample, thread: Thread) -> Activity:
        call = thread.call if thread.state != "R" else None
        opened = _opened(process, call)
        key = (thread.stack, thread.native, call.name if call else "", hash(opened))
        known = self._known.get(key)
        if known is None:
            frames = self._snapshot.stack(thread.stack)
            merged = self._snapshot.stack(thread.native)
            known = self._known[key] = self._work_out(frames, merged, call, opened)
        if self._polls(process, sample, thread, known._replace(call=call)):
            known = known._replace(word="file-lock", op="a loop of its own")
        if known.word == "collective" and known.op in ("", "collective"):
            known = known._replace(op=self._gloo_operation(sample) or UNNAMED_COLLECTIVE)
        return known._replace(call=call)

    def _polls(self, process: Process, sample: Sample, thread: Thread, activity: Activity) -> bool:
        """Whether a thread waits for a lock file: it sleeps, or looks at the file just now, and sleeps otherwise."""
        if activity.word not in ("sleep", "compute", "io"):
            return False
        files = _lock_files(process)
        if not files:
            return False
        if activity.word == "sleep" and (naps(process, thread) or files & _polled(process, thread, sure=True)):
            # In a long sleep, the loop around it must end with the file: other loops look at a file now and then.
            return True
        if not files & _files_of(process, thread):
            return False
        if activity.word == "io":
            return activity.about in files and _slept_before(process, sample, thread)
        return activity.call is None and self._is_between_naps(process, sample, thread)

    def _is_between_naps(self, process: Process, sample: Sample, thread: Thread) -> bool:
        """Whether a thread that runs looks at its lock file just now: in every sample it was in the same functions, in
        one of them it slept briefly, and since then it has mostly slept."""
        functions = own_functions(self._snapshot.stack(thread.stack))
        asleep: list[tuple[float, int]] = []  # seconds and CPU time between a brief sleep and now
        for other_sample in process.samples:
            for other in other_sample.threads:
                if other.tid != thread.tid or not other.stack:
                    continue
                if own_functions(self._snapshot.stack(other.stack)) != functions:
                    return False
                if other.call is not None and _is_nap(other.call):
                    asleep.append((abs(sample.time - other_sample.time), abs(thread.ran - other.ran)))
        if not asleep:
            return False
        seconds, ran = min(asleep)
        return ran * 1e-9 <= BUSY_SHARE * seconds

    def _work_out(
        self,
        frames: tuple[Frame, ...],
        merged: tuple[Frame, ...],
        call: Call | None,
        opened: _Opened,
    ) -> Activity:
        if is_in_agent(frames):
            call, opened = None, _Opened()  # the call is made by breakranks, not by the job
        frames, merged = cut_agent(frames), cut_agent(merged)
        below, above = self._split(frames)
        own = innermost_own(above if any(is_own(frame.file) for frame in above) else frames)
        tail = native_tail(merged)
        context = self._context(above if below else frames) or self._purpose(below)
        base = Activity(word="unknown", where=own, call=call, context=context, tail=tail, **opened._asdict())
        python = self._python(below)
        native = self._native(tail)
        if native is not None and native[0].activity in _PASSING and call is not None and call.is_sleep:
            native = None
        if python is not None and python[0].weight >= 40:
            meaning, frame = python
            if meaning.activity in ("thread-wait", "helper-wait") and native is not None and native[0].weight >= 70:
                return base._replace(word=native[0].activity, op=_operation(*native))
            if opened.kind == "tty" and call is not None and call.name in ("read", "poll", "select", "pselect6"):
                return base._replace(word="prompt", op="input()" if meaning.activity != "prompt" else meaning.op)
            return base._replace(word=meaning.activity, op=_operation(meaning, frame))
        if native is not None:
            meaning, frame = native
            asleep = call is not None and call.name in _SLEEPS
            if (meaning.activity != "thread-wait" or call is None or call.name == "futex") and (
                meaning.activity != "file-lock" or asleep
            ):
                return base._replace(word=meaning.activity, op=_operation(meaning, frame))
        by_call = self._by_call(base, call)
        if by_call is not None and not (python is not None and by_call.word in ("sleep", "thread-wait")):
            if python is not None and by_call.word == "socket" and python[0].activity == "socket":
                return by_call._replace(op=_operation(*python))
            return by_call
        if python is not None:
            return base._replace(word=python[0].activity, op=_operation(*python))
        if by_call is not None:
            return by_call
        if not frames:
            return base
        return base._replace(word="compute")

    def _split(self, frames: tuple[Frame, ...]) -> tuple[tuple[Frame, ...], tuple[Frame, ...]]:
        """Return the frames below the innermost frame of the user, and the others. Without such a frame, all are below.

        A frame that a row of the user's names counts as library code, with all that it calls.
        """
        for index, frame in enumerate(frames):
            if is_own(frame.file) and self._table.is_added(frame.function, frame.file):
                return frames[index:], frames[:index]
        for index in range(len(frames) - 1, -1, -1):
            if is_own(frames[index].file):
                return frames[index + 1 :], frames[: index + 1]
        return frames, ()

    def _python(self, below: tuple[Frame, ...]) -> tuple[FrameMeaning, Frame] | None:
        """Return the meaning with the highest weight among the library frames below the user's code, the outermost on a
        tie."""
        best: tuple[FrameMeaning, Frame] | None = None
        for frame in below:
            meaning = self._table.python(frame.function, frame.file)
            if meaning is not None and (best is None or meaning.weight > best[0].weight):
                best = (meaning, frame)
        return best

    def _native(self, tail: tuple[Frame, ...]) -> tuple[FrameMeaning, Frame] | None:
        best: tuple[FrameMeaning, Frame] | None = None
        for frame in tail:
            meaning = self._table.native(frame.function)
            if meaning is not None and (best is None or meaning.weight > best[0].weight):
                best = (meaning, frame)
        return best

    def _context(self, frames: tuple[Frame, ...]) -> str:
        best: FrameMeaning | None = None
        for frame in frames:
            meaning = self._table.context(frame.function, frame.file)
            if meaning is not None and (best is None or meaning.weight > best.weight):
                best = meaning
        return best.op if best is not None else ""

    def _purpose(self, below: tuple[Frame, ...]) -> str:
        """Return the purpose for which a library makes its calls, from its frames."""
        for frame in below:
            meaning = self._table.within(frame.function, frame.file)
            if meaning is not None:
                return meaning.op
        return ""

    @staticmethod
    def _by_call(base: Activity, call: Call | None) -> Activity | None:
        """Return the activity that the system call alone shows, where no frame is known."""
        if call is None:
            return None
        if call.is_sleep:
            return base._replace(word="sleep", op="sleep")
        if call.name in ("flock", "fcntl"):
            return base._replace(word="file-lock", op=call.name)
        if call.name in _WAITS:
            return base._replace(word="subprocess", op="waitpid")
        if base.kind == "tty" and call.name in ("read", "poll", "select", "pselect6", "ppoll"):
            return base._replace(word="prompt", op="the terminal")
        if base.kind == "socket" or call.name in _NETWORK:
            return base._replace(word="socket", op=call.name)
        if call.name in _READS or (base.about and call.name in ("poll", "ppoll", "select", "pselect6")):
            return base._replace(word="io", op=call.name)
        if call.name == "futex":
            return base._replace(word="thread-wait", op="lock")
        if call.name in ("epoll_wait", "epoll_pwait", "poll", "ppoll", "select", "pselect6"):
            return base._replace(word="socket", op=call.name)
        return None

    def _gloo_operation(self, sample: Sample) -> str:
        for thread in sample.threads:
            if not thread.python and thread.native:
                for frame in self._snapshot.stack(thread.native):
                    match = GLOO_WORK.match(frame.function)
                    if match:
                        return GLOO_OPS.get(match[1], match[1].lower())
        return ""


def _opened(process: Process, call: Call | None) -> _Opened:
    """Return what the file descriptor of a call refers to."""
    if call is None:
        return _Opened()
    if call.path:
        return _Opened(call.path, kind="file")
    if call.fd < 0:
        return _Opened()
    for file in process.files:
        if file.fd == call.fd:
            unnamed = file.peer and file.path.startswith("pipe:")
            return _Opened("a pipe" if unnamed else file.path, file.peer, file.kind)
    for socket in process.sockets:
        if socket.fd == call.fd:
            other = socket.peer or (f"a connection to {socket.local}" if socket.local else "a socket")
            return _Opened(other, kind="socket")
    return _Opened()


def naps(process: Process, thread: Thread) -> bool:
    """Whether a thread sleeps briefly. If it was sampled between two sleeps, samples with the same stack show it."""
    call = thread.call
    if call is not None and call.is_sleep and thread.state != "R" and (call.left or _UNREAD_SECONDS) < _UNREAD_SECONDS:
        return _is_nap(call)
    threads = (thread for sample in process.samples for thread in sample.threads)
    return any(other.call is not None and _is_nap(other.call) for other in threads if _is_same(other, thread))


def _lock_files(process: Process) -> set[str]:
    """The lock files that a process waits for, and that exist."""
    return {lock.path for lock in process.locks if lock.kind not in ("gone", "conflict")}


def _files_of(process: Process, thread: Thread) -> set[str]:
    """The files whose paths are in the frames of a thread: by introspection, or as seen from outside."""
    return _polled(process, thread) | set(thread.hints.values())


def _polled(process: Process, thread: Thread, *, sure: bool = False) -> set[str]:
    """The files that a loop of a thread tests, by introspection; with ``sure``, those with which the loop ends."""
    inside = process.inside.polled if process.inside is not None else ()
    return {file.path for file in inside if file.tid == thread.tid and (file.sure or not sure)}


def _slept_before(process: Process, sample: Sample, thread: Thread) -> bool:
    """Whether a thread slept in the sample before this one."""
    before = [other for other in process.samples if other.time < sample.time][-1:]
    calls = (other.call for earlier in before for other in earlier.threads if other.tid == thread.tid)
    return any(call is not None and call.is_sleep for call in calls)


def _is_nap(call: Call) -> bool:
    return call.left is not None and call.left < _POLL_SECONDS


def _is_same(thread: Thread, other: Thread) -> bool:
    return (thread.tid, thread.stack) == (other.tid, other.stack)


def _operation(meaning: FrameMeaning, frame: Frame) -> str:
    if meaning.op:
        return meaning.op
    name = frame.function
    for prefix in ("PMPI_", "MPI_"):
        if name.startswith(prefix):
            return f"MPI_{name.removeprefix(prefix)}"
    if "::SendWork" in name:
        return "send"
    if "::RecvWork" in name:
        return "recv"
    return name.replace("::", "/").rsplit("/", 1)[-1]
