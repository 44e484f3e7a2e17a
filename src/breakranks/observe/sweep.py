"""Run py-spy over many processes: as many at a time as there are CPUs, with a deadline each.

py-spy is started with ``posix_spawn`` and writes to an anonymous memory file: no pipe to drain. Imports
nothing but built-in and tiny modules, since this runs before anything else of a command is imported.
"""

from __future__ import annotations

import os
import sys
import time

from breakranks.errors import BreakranksError
from breakranks.log import Log, milliseconds
from breakranks.observe import permissions
from breakranks.stall import stalled

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable, Iterator
else:
    import _signal as signal  # what signal is made of: the same, without making an enum of every constant

DEADLINE = 5.0
_log = Log("observe")
_WAKE = 0.002
# Another tool that looks at this very moment is done after this, unless it is there to stay.
_ANOTHER_LOOK = 0.1
_MORE_LOOKS = 5  # at a process that another tool holds for a moment


class Answer:
    """What py-spy said of one process. ``late``: how many seconds it was given, and said nothing."""

    __slots__ = ("errors", "late", "pid", "text")

    def __init__(self, pid: int, text: bytes = b"", errors: str = "", late: float = 0.0) -> None:
        self.pid = pid
        self.text = text
        self.errors = errors
        self.late = late


class _Running:
    __slots__ = ("began", "child", "command", "end", "ended", "errors", "output", "status", "target")

    def __init__(self, target: int, command: list[str], output: int, errors: int, child: int, deadline: float) -> None:
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


class Sweep:
    """A look at many processes, which may go on while its caller does other things.

    ``gently`` is asked just before each is touched, whether it must not be paused. More at a time than there
    are CPUs would only make each pause longer. Whoever starts one takes all ``answers()`` or calls ``cancel()``
    in the end, whatever happens between.
    """

    def __init__(
        self,
        pids: Iterable[int],
        *,
        gently: Callable[[int], bool] = lambda pid: False,
        locals: bool = True,
        deadline: float = DEADLINE,
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
        self._asked_again: dict[int, int] = {}  # by process, how often
        self._in_turn = self._missed = False
        self._looked = 0.0  # when it was last asked who is late
        self._failure: Exception | None = None
        self._restore: list[Callable[[], object]] = []

    def start(self) -> None:
        """Begin, and go on in the background: each py-spy that ends is followed by the next at once.

        By a handler of SIGCHLD, not by a thread: it need not wait for the interpreter's lock, and a process
        without threads may still fork. Outside the main thread there are no handlers; then the first few
        are started here and the others by ``answers()``.
        """
        try:
            before = signal.signal(signal.SIGCHLD, self._child_ended) or signal.SIG_DFL
        except ValueError:
            pass
        else:
            self._restore.append(lambda: signal.signal(signal.SIGCHLD, before))
            signal.siginterrupt(signal.SIGCHLD, False)
        self._turn()

    @property
    def busy(self) -> bool:
        """Whether anybody is still to be looked at."""
        return bool(self._waiting or self._running)

    def answers(self) -> Iterator[Answer]:
        """An answer for every process, in the order in which they come."""
        try:
            self._to_foreground()
            self._looked = time.monotonic()
            while self._turn():
                if self._ended:
                    answer = self._read(self._ended.pop(0))
                    if answer is not None:
                        yield answer
                else:
                    # Wakes at once for a child's end; if another thread got the signal, a moment later.
                    signal.sigtimedwait((signal.SIGCHLD,), _WAKE)
                    yield from self._late_ones()
        finally:
            self.cancel()

    def cancel(self) -> bool:
        """Leave nothing behind. Whether anything had to be killed for it."""
        self._give_signal_back()  # first, so that no handler comes between
        self._waiting.clear()
        self._again.clear()
        killed = bool(self._running)
        while self._running:
            _kill(self._running[-1])
            self._running.pop()
        while self._ended:
            _close(self._ended.pop())
        return killed

    def _give_signal_back(self) -> None:
        while self._restore:
            self._restore[-1]()
            self._restore.pop()

    def _to_foreground(self) -> None:
        """From here on the signal is waited for, not handled."""
        self._give_signal_back()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        self._restore.append(lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))
        if self._failure is not None:
            raise self._failure

    def _child_ended(self, *_: object) -> None:
        # Comes between any two steps of anybody's code, so nothing may be raised or imported here.
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
                    ended, status = os.waitpid(one.child, os.WNOHANG)
                    if ended:
                        one.status, one.ended = os.waitstatus_to_exitcode(status), time.monotonic()
                        self._running.remove(one)
                        self._ended.append(one)
                while len(self._running) < self._at_once and (pid := self._next()):
                    self._spawn(pid)
        finally:
            self._in_turn = False
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

    def _spawned(self, pid: int) -> _Running:
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
        return _Running(pid, command, output, errors, child, self._deadline)

    def _read(self, one: _Running) -> Answer | None:
        """What py-spy wrote; None if it was refused only for now and will be tried again."""
        answer = Answer(one.target, _contents(one.output), _contents(one.errors).decode(errors="replace"))
        _close(one)
        took = milliseconds(one.began, one.ended)
        _log.debug("ran", argv=one.command, status=one.status, bytes=len(answer.text), ms=took)
        asked = self._asked_again.get(one.target, 0)
        if not answer.text and asked < _MORE_LOOKS and permissions.for_now(one.target, answer.errors):
            self._asked_again[one.target] = asked + 1
            self._again.append((time.monotonic() + _ANOTHER_LOOK, one.target))
            return None
        return answer

    def _late_ones(self) -> Iterator[Answer]:
        now = time.monotonic()
        away, self._looked = stalled(now - self._looked, _WAKE), now
        for one in tuple(self._running):
            one.end += away
            if now > one.end:
                self._running.remove(one)
                _kill(one)
                _log.debug("ran, killed at its deadline", argv=one.command, ms=milliseconds(one.began))
                yield Answer(one.target, late=self._deadline)


def _kill(one: _Running) -> None:
    try:
        os.kill(one.child, signal.SIGKILL)
        os.waitpid(one.child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has ended, and was waited for when something interrupted us
    _close(one)


def _close(one: _Running) -> None:
    os.close(one.output)
    os.close(one.errors)


def _contents(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)
