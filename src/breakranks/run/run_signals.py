"""Signals to run: which there were, and whether the command has them already.

Ctrl-C and the end of the terminal reach all processes in the foreground, the launcher too. Any other signal was sent to
run alone. The kernel tells them apart only to a process that takes blocked signals one by one.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any, NamedTuple

_HANDLED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
_SI_KERNEL = 0x80
_REPEATED_SECONDS = 0.3  # `timeout` sends its signal to run, and at once to its whole group


class TakenSignal(NamedTuple):
    """A signal. ``from_terminal``: the whole foreground process group got it."""

    number: int
    from_terminal: bool


class SignalQueue:
    """Takes the signals that would end run. Those that it was started to ignore (``nohup``) stay ignored."""

    def __init__(self) -> None:
        self._taken: list[TakenSignal] = []
        self._before: dict[int, Any] = {}
        self._last: dict[int, float] = {}

    def __enter__(self) -> SignalQueue:
        for number in _HANDLED:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unblock()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def block(self) -> None:
        """From now on, signals wait for ``wait``. Child processes must not be started while they do."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {*self._before, signal.SIGCHLD})

    def unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*self._before, signal.SIGCHLD})

    def wait(self, seconds: float) -> list[TakenSignal]:
        """Wait for a signal, or for the end of a child process, and return what was taken. Signals are blocked."""
        taken, self._taken = self._taken, []
        while (info := signal.sigtimedwait({*self._before, signal.SIGCHLD}, 0.0 if taken else seconds)) is not None:
            if info.si_signo == signal.SIGCHLD:
                break
            taken.append(TakenSignal(info.si_signo, _is_from_terminal(info)))
        return [signal for signal in taken if not self._is_repeated(signal)]

    def _is_repeated(self, taken: TakenSignal) -> bool:
        now = time.monotonic()
        last, self._last[taken.number] = self._last.get(taken.number, 0.0), now
        return not taken.from_terminal and now - last < _REPEATED_SECONDS

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._taken.append(TakenSignal(number, number in _KEYBOARD and _in_foreground()))


def _is_from_terminal(info: signal.struct_siginfo) -> bool:
    if info.si_code == _SI_KERNEL:
        return True
    # A shell that loses its terminal sends SIGHUP to the process groups of its jobs.
    return info.si_signo == signal.SIGHUP and info.si_pid == os.getsid(0)


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
