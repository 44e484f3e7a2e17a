"""Run py-spy over many processes: one per CPU at a time, each with a deadline.

py-spy is started with ``posix_spawn`` and writes to an anonymous memory file, so that there is no pipe to drain.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from breakranks.errors import BreakranksError
from breakranks.log import Log, milliseconds
from breakranks.machine_suspension import stalled
from breakranks.observe import ptrace_permissions

DEADLINE_SECONDS = 5.0
_log = Log("observe")
_WAKE_SECONDS = 0.002
# A tool that traces the process only for an instant has detached after this.
_RETRY_SECONDS = 0.1
_MAX_RETRIES = 5


class PySpyOutput:
    """The output of py-spy for one process. ``late``: the deadline in seconds, if it did not answer within that."""

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
    """The path of py-spy: beside the interpreter, where pip installs it, or in PATH."""
    for folder in (os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)):
        path = os.path.join(folder, "py-spy")
        if os.access(path, os.X_OK):
            return path
    raise BreakranksError("py-spy is not installed", "Run pip install py-spy in the environment of breakranks.")


class PySpyRun:
    """One reading of the stacks of many processes.

    ``gently`` is called for each process just before py-spy is started: whether it must not be paused. More py-spys at
    a time than CPUs would only make each pause longer.
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
        self._retries: dict[int, int] = {}
        self._deadlines_checked = 0.0

    def answers(self) -> Iterator[PySpyOutput]:
        """Yield an answer for every process, in the order in which they come."""
        # SIGCHLD is blocked so that sigtimedwait can wait for it: the next py-spy starts as soon as one has ended.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        self._deadlines_checked = time.monotonic()
        try:
            while self._turn():
                if self._ended:
                    answer = self._read(self._ended.pop(0))
                    if answer is not None:
                        yield answer
                else:
                    # Returns at once when a child ends, or a moment later if another thread got the signal.
                    signal.sigtimedwait((signal.SIGCHLD,), _WAKE_SECONDS)
                    yield from self._late_answers()
        finally:
            self._cancel()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _cancel(self) -> None:
        """End all processes and close all files."""
        while self._running:
            _kill(self._running[-1])
            self._running.pop()
        while self._ended:
            _close(self._ended.pop())

    def _turn(self) -> bool:
        """Reap the children that have ended, start the next ones, and return whether more answers come."""
        for process in tuple(self._running):
            ended, status = os.waitpid(process.child, os.WNOHANG)
            if ended:
                process.status, process.ended = os.waitstatus_to_exitcode(status), time.monotonic()
                self._running.remove(process)
                self._ended.append(process)
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
        # Without this, a Ctrl-C between the start of a child and its registration would leave the child behind.
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
            # Twice, so that py-spy does not cut paths at 128 characters.
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
            # A process group of its own: Ctrl-Z at the terminal must not stop it while it has paused a rank.
            setpgroup=0,
            setsigmask=(),
        )
        return _PySpyProcess(
            target=pid, command=command, output=output, errors=errors, child=child, deadline=self._deadline
        )

    def _read(self, process: _PySpyProcess) -> PySpyOutput | None:
        """Return what py-spy wrote, or None if tracing was denied only for an instant and will be tried again."""
        target = process.target
        answer = PySpyOutput(target, _contents(process.output), _contents(process.errors).decode(errors="replace"))
        _close(process)
        took = milliseconds(process.began, process.ended)
        _log.debug("ran", argv=process.command, status=process.status, bytes=len(answer.text), ms=took)
        retries = self._retries.get(target, 0)
        if not answer.text and retries < _MAX_RETRIES and ptrace_permissions.for_now(target, answer.errors):
            self._retries[target] = retries + 1
            self._again.append((time.monotonic() + _RETRY_SECONDS, target))
            return None
        return answer

    def _late_answers(self) -> Iterator[PySpyOutput]:
        now = time.monotonic()
        away, self._deadlines_checked = stalled(now - self._deadlines_checked, _WAKE_SECONDS), now
        for process in tuple(self._running):
            process.end += away
            if now > process.end:
                self._running.remove(process)
                _kill(process)
                _log.debug("ran, killed at its deadline", argv=process.command, ms=milliseconds(process.began))
                yield PySpyOutput(process.target, late=self._deadline)


def _kill(process: _PySpyProcess) -> None:
    try:
        os.kill(process.child, signal.SIGKILL)
        os.waitpid(process.child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has ended, and was reaped just before this call was interrupted
    _close(process)


def _close(process: _PySpyProcess) -> None:
    os.close(process.output)
    os.close(process.errors)


def _contents(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)
