"""Run py-spy over many processes: as many at a time as there are CPUs, with a deadline each.

py-spy is started with ``posix_spawn`` and writes to an anonymous memory file: no pipe to drain.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from breakranks.errors import BreakranksError
from breakranks.log import Log, milliseconds
from breakranks.observe import permissions
from breakranks.own_suspension import stalled

DEADLINE_SECONDS = 5.0
_log = Log("observe")
_WAKE_SECONDS = 0.002
# Another tool that looks at this very moment is done after this, unless it is there to stay.
_RETRY_SECONDS = 0.1
_MAX_RETRIES = 5  # of a process that another tool holds for a moment


class PySpyOutput:
    """What py-spy said of one process. ``late``: how many seconds it was given, and said nothing."""

    __slots__ = ("errors", "late", "pid", "text")

    def __init__(self, pid: int, text: bytes = b"", errors: str = "", late: float = 0.0) -> None:
        self.pid = pid
        self.text = text
        self.errors = errors
        self.late = late


class _PySpyProcess:
    __slots__ = ("began", "child", "command", "end", "ended", "errors", "output", "status", "target")

    def __init__(
        self, *, target: int, command: list[str], output: int, errors: int, child: int, deadline: float
    ) -> None:
        self.target = target
        self.command = command
        self.began = self.ended = time.monotonic()
        self.status = 0
        self.output = output
        self.errors = errors
        self.child = child
        self.end = self.began + deadline


def py_spy() -> str:
    """Where py-spy is: beside our interpreter, where pip put it, or in the PATH."""
    for folder in (os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)):
        path = os.path.join(folder, "py-spy")
        if os.access(path, os.X_OK):
            return path
    raise BreakranksError("py-spy is not installed", "pip install py-spy, in the environment of breakranks.")


class PySpyRun:
    """One look at many processes.

    ``gently`` is asked just before each is touched, whether it must not be paused. More at a time than there
    are CPUs would only make each pause longer.
    """

    def __init__(
        self,
        pids: Iterable[int],
        *,
        gently: Callable[[int], bool] = lambda pid: False,
        locals: bool = True,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        self._gently = gently
        self._locals = locals
        self._deadline = deadline
        self._tool = py_spy()
        self._environ = {**os.environ, "RUST_BACKTRACE": "0"}
        self._at_once = max(2, os.cpu_count() or 2)
        self._waiting = list(dict.fromkeys(pids))[::-1]
        self._running: list[_PySpyProcess] = []
        self._ended: list[_PySpyProcess] = []
        self._again: list[tuple[float, int]] = []
        self._asked_again: dict[int, int] = {}  # by process, how often
        self._looked = 0.0  # when it was last asked who is late

    def answers(self) -> Iterator[PySpyOutput]:
        """An answer for every process, in the order in which they come."""
        # Blocked, so that it can be waited for: a py-spy that ends is followed by the next at once.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        self._looked = time.monotonic()
        try:
            while self._turn():
                if self._ended:
                    answer = self._read(self._ended.pop(0))
                    if answer is not None:
                        yield answer
                else:
                    # Wakes at once for a child's end; if another thread got the signal, a moment later.
                    signal.sigtimedwait((signal.SIGCHLD,), _WAKE_SECONDS)
                    yield from self._late_ones()
        finally:
            self._cancel()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _cancel(self) -> None:
        """Leave nothing behind."""
        while self._running:
            _kill(self._running[-1])
            self._running.pop()
        while self._ended:
            _close(self._ended.pop())

    def _turn(self) -> bool:
        """Take note of who has ended and start who is next; whether there is more to come."""
        for one in tuple(self._running):
            ended, status = os.waitpid(one.child, os.WNOHANG)
            if ended:
                one.status, one.ended = os.waitstatus_to_exitcode(status), time.monotonic()
                self._running.remove(one)
                self._ended.append(one)
        while len(self._running) < self._at_once and (pid := self._next()):
            self._spawn(pid)
        return bool(self._running or self._ended or self._waiting or self._again)

    def _next(self) -> int:
        if self._waiting:
            return self._waiting.pop()
        if self._again and time.monotonic() >= self._again[0][0]:
            return self._again.pop(0)[1]
        return 0

    def _spawn(self, pid: int) -> None:
        # Ctrl-C may come after a child is there, but not before it is noted: it would be left behind.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        try:
            self._running.append(self._spawned(pid))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _spawned(self, pid: int) -> _PySpyProcess:
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
        return _PySpyProcess(
            target=pid, command=command, output=output, errors=errors, child=child, deadline=self._deadline
        )

    def _read(self, one: _PySpyProcess) -> PySpyOutput | None:
        """What py-spy wrote; None if it was refused only for now and will be tried again."""
        answer = PySpyOutput(one.target, _contents(one.output), _contents(one.errors).decode(errors="replace"))
        _close(one)
        took = milliseconds(one.began, one.ended)
        _log.debug("ran", argv=one.command, status=one.status, bytes=len(answer.text), ms=took)
        asked = self._asked_again.get(one.target, 0)
        if not answer.text and asked < _MAX_RETRIES and permissions.for_now(one.target, answer.errors):
            self._asked_again[one.target] = asked + 1
            self._again.append((time.monotonic() + _RETRY_SECONDS, one.target))
            return None
        return answer

    def _late_ones(self) -> Iterator[PySpyOutput]:
        now = time.monotonic()
        away, self._looked = stalled(now - self._looked, _WAKE_SECONDS), now
        for one in tuple(self._running):
            one.end += away
            if now > one.end:
                self._running.remove(one)
                _kill(one)
                _log.debug("ran, killed at its deadline", argv=one.command, ms=milliseconds(one.began))
                yield PySpyOutput(one.target, late=self._deadline)


def _kill(one: _PySpyProcess) -> None:
    try:
        os.kill(one.child, signal.SIGKILL)
        os.waitpid(one.child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has ended, and was waited for when something interrupted us
    _close(one)


def _close(one: _PySpyProcess) -> None:
    os.close(one.output)
    os.close(one.errors)


def _contents(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)
