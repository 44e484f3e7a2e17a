"""Python stacks of many processes at once: a sweep of py-spy, in parallel, with a deadline.

py-spy is started with ``posix_spawn`` and writes to an anonymous memory file: no pipe to drain, no
module of ours to import before the first stack is on its way.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from breakranks.errors import BreakranksError
from breakranks.observe import hints, permissions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from breakranks.snapshot.model import Frame, Problem

_DEADLINE = 5.0
_WAKE = 0.002
# Another tool that looks at this very moment is done after this, unless it is there to stay.
_ANOTHER_LOOK = 0.1


class PythonThread(NamedTuple):
    tid: int
    name: str
    gil: bool
    frames: tuple[Frame, ...]
    hints: dict[str, str]


class PythonStacks(NamedTuple):
    threads: tuple[PythonThread, ...]
    problem: Problem | None = None


class _Running(NamedTuple):
    target: int
    child: int
    output: int
    errors: int
    end: float


def py_spy() -> str:
    """Where py-spy is: beside our interpreter, where pip put it, or in the PATH."""
    for folder in (os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)):
        path = os.path.join(folder, "py-spy")
        if os.access(path, os.X_OK):
            return path
    raise BreakranksError("py-spy is not installed", "pip install py-spy, in the environment of breakranks.")


def sweep(
    pids: Iterable[int],
    *,
    gently: Callable[[int], bool] = lambda pid: False,
    locals: bool = True,
    deadline: float = _DEADLINE,
) -> dict[int, PythonStacks]:
    """The Python stacks of all these processes.

    A process for which ``gently`` holds (stopped, uninterruptible) is read without being paused, since it
    could not answer. Every process has an entry in the answer; what could not be read says why.
    """
    return Sweep(pids, gently=gently, locals=locals, deadline=deadline).result()


class Sweep:
    """A sweep that may go on while its caller does other things.

    As many processes are looked at at a time as there are CPUs: more would only make each pause longer.
    Whoever makes one calls ``result()`` or ``cancel()`` in the end, whatever happens between.
    """

    def __init__(
        self,
        pids: Iterable[int],
        *,
        gently: Callable[[int], bool] = lambda pid: False,
        locals: bool = True,
        deadline: float = _DEADLINE,
    ) -> None:
        self._gently = gently
        self._locals = locals
        self._deadline = deadline
        self._tool = py_spy()
        self._environ = {**os.environ, "RUST_BACKTRACE": "0"}
        self._at_once = max(2, os.cpu_count() or 2)
        self._waiting = list(dict.fromkeys(pids))[::-1]
        self._running: list[_Running] = []
        self._ended: list[_Running] = []
        self._again: list[tuple[float, int]] = []
        self._asked_again: set[int] = set()
        self._found: dict[int, PythonStacks] = {}
        self._in_turn = self._missed = False
        self._failure: Exception | None = None
        self._restore: list[Callable[[], object]] = []

    def start(self) -> None:
        """Begin, and go on in the background: each py-spy that ends is followed by the next at once.

        By a handler of SIGCHLD, not by a thread: it needs no turn of the interpreter's lock, and a process
        without threads may still fork. Outside the main thread there are no handlers; then the first few
        are started here and the others by ``result()``.
        """
        try:
            before = signal.signal(signal.SIGCHLD, self._child_ended) or signal.SIG_DFL
        except ValueError:
            pass
        else:
            self._restore.append(lambda: signal.signal(signal.SIGCHLD, before))
            signal.siginterrupt(signal.SIGCHLD, False)
        self._turn()

    def result(self) -> dict[int, PythonStacks]:
        """The stacks, when all are there."""
        try:
            self._to_foreground()
            while self._turn():
                if self._ended:
                    self._read(self._ended.pop())
                else:
                    # Wakes at once for a child's end; if another thread got the signal, a moment later.
                    signal.sigtimedwait((signal.SIGCHLD,), _WAKE)
                    self._give_up_late_ones()
        finally:
            self.cancel()
        return self._found

    def cancel(self) -> bool:
        """Leave nothing behind. Whether anything had to be killed for it."""
        self._waiting.clear()
        killed = bool(self._running)
        while self._running:
            one = self._running[-1]
            _kill(one.child)
            self._running.pop()
            self._ended.append(one)
        while self._ended:
            _close(self._ended.pop())
        while self._restore:
            self._restore.pop()()
        return killed

    def _to_foreground(self) -> None:
        """From here on the signal is waited for, not handled."""
        while self._restore:
            self._restore.pop()()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        self._restore.append(lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))
        if self._failure is not None:
            raise self._failure

    def _child_ended(self, *_: object) -> None:
        # Comes between any two lines of anybody's code: nothing may be raised there.
        try:
            self._turn()
        except Exception as error:
            self._failure = error

    def _turn(self) -> bool:
        """Take note of who has ended and start who is next; whether there is more to come."""
        self._missed = True
        if self._in_turn:  # the signal came while its handler was at work, which will look again
            return True
        self._in_turn = True
        try:
            while self._missed:
                self._missed = False
                for one in tuple(self._running):
                    self._check(one)
                while len(self._running) < self._at_once and (pid := self._next()):
                    self._running.append(self._spawn(pid))
        finally:
            self._in_turn = False
        return bool(self._running or self._ended or self._waiting or self._again)

    def _next(self) -> int:
        if self._waiting:
            return self._waiting.pop()
        if self._again and time.monotonic() >= self._again[0][0]:
            return self._again.pop(0)[1]
        return 0

    def _check(self, one: _Running) -> None:
        done, _ = os.waitpid(one.child, os.WNOHANG)
        if done:
            self._running.remove(one)
            self._ended.append(one)

    def _give_up_late_ones(self) -> None:
        now = time.monotonic()
        for one in tuple(self._running):
            if now > one.end:
                _kill(one.child)
                self._running.remove(one)
                _close(one)
                self._found[one.target] = PythonStacks((), permissions.late(one.target, self._deadline))

    def _spawn(self, pid: int) -> _Running:
        output = os.memfd_create("stacks")
        errors = os.memfd_create("errors")
        command = [self._tool, "dump", "--json", "--pid", str(pid)]
        if self._locals:
            # Twice: paths of more than 128 characters are wanted whole.
            command.append("-ll")
        if self._gently(pid):
            command.append("--nonblocking")
        child = os.posix_spawn(
            self._tool,
            command,
            self._environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, errors, 2),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            ],
            # A group of its own: Ctrl-Z at the terminal must not stop it while it holds a rank.
            setpgroup=0,
            setsigmask=(),
        )
        return _Running(pid, child, output, errors, time.monotonic() + self._deadline)

    def _read(self, one: _Running) -> None:
        """What py-spy wrote of a process. Here only: it takes modules that a handler must not import."""
        text, errors = _contents(one.output), _contents(one.errors).decode(errors="replace")
        _close(one)
        if text.strip():
            self._found[one.target] = _parsed(one.target, text)
        elif one.target not in self._asked_again and permissions.for_now(one.target, errors):
            self._asked_again.add(one.target)
            self._again.append((time.monotonic() + _ANOTHER_LOOK, one.target))
        else:
            self._found[one.target] = PythonStacks((), permissions.refused(one.target, errors))


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has ended, and was waited for when something interrupted us


def _close(one: _Running) -> None:
    os.close(one.output)
    os.close(one.errors)


def _contents(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


def _parsed(pid: int, text: bytes) -> PythonStacks:
    try:
        return PythonStacks(parse(text))
    except (ValueError, KeyError, TypeError) as error:
        from breakranks.snapshot.model import Problem

        return PythonStacks((), Problem(f"py-spy's answer for process {pid} cannot be read: {error}", "Update py-spy."))


def parse(text: bytes) -> tuple[PythonThread, ...]:
    """py-spy's JSON to threads; frames outermost first, functions by their plain name."""
    import msgspec

    from breakranks.snapshot.model import Frame

    threads = []
    for thread in msgspec.json.decode(text):
        frames = []
        kept: dict[str, str] = {}
        for frame in reversed(thread["frames"]):
            function = plain_name(frame["name"])
            file = frame["filename"]
            frames.append(Frame(function, file, frame["line"]))
            for local in frame.get("locals") or ():
                value = hints.keep(function, file, local["name"], local.get("repr") or "")
                if value is not None:
                    kept[f"{function}.{local['name']}"] = value
        threads.append(
            PythonThread(
                thread.get("os_thread_id") or 0,
                thread.get("thread_name") or "",
                bool(thread["owns_gil"]),
                tuple(frames),
                kept,
            )
        )
    return tuple(threads)


def plain_name(name: str) -> str:
    """``Trainer.fit.<locals>.step`` is ``step``: Python before 3.11 knows no more, and the file follows."""
    return name.rsplit(".", 1)[-1]
