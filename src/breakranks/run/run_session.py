"""A run from the start of its command to its end: show the output, pass signals on, call the hooks."""

from __future__ import annotations

import os
import signal
import sys
import termios
from typing import Any, Protocol

from breakranks.log import Log
from breakranks.run.command_process import CommandProcess
from breakranks.run.job_output import JobOutput
from breakranks.run.rank_registry import RankRegistry, is_running
from breakranks.run.run_folder import RunFolder
from breakranks.run.run_signals import SignalQueue, TakenSignal

MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.002, 0.05
BEHIND_SECONDS = 0.001  # the reader of the output is slow; it was waited for already
_MUCH_BYTES = 1 << 18  # with so much read in one turn, there is more
_INTERRUPTS = 3  # the last of them ends run itself
_log = Log("run")


class RunHook(Protocol):
    """Something that happens beside a run. Neither call may take long, because signals wait meanwhile."""

    def turn(self, session: RunSession) -> None:
        """Called again and again, every 2 to 50 ms, while the command runs."""

    def end(self, session: RunSession, status: int) -> None:
        """Called when the command has ended and all of its output was shown."""


class RunAbandonedError(Exception):
    """The third Ctrl-C: run ends, and the command may go on."""


class RunSession:
    """One run. ``hooks`` may be added to until it starts."""

    def __init__(
        self,
        folder: RunFolder,
        registry: RankRegistry,
        command: CommandProcess,
        output: JobOutput,
        signals: SignalQueue,
        *,
        debug_rank: int = -1,
    ) -> None:
        self.folder = folder
        self.registry = registry
        self.command = command
        self.output = output
        self.hooks: list[RunHook] = []
        self._signals = signals
        self._debug_rank = debug_rank
        self._interrupts = 0
        self._shows = True

    @property
    def was_interrupted(self) -> bool:
        """Whether the user has pressed Ctrl-C."""
        return self._interrupts > 0

    def run(self) -> int:
        """Wait for the end of the command, and return its exit status, 128 + N after signal N."""
        wait = MIN_WAIT_SECONDS
        while (status := self.command.poll()) is None:
            self._signals.block()
            count = self._show()
            wait = MIN_WAIT_SECONDS if count > 0 else min(wait * 1.5, MAX_WAIT_SECONDS)
            for taken in self._signals.wait(_seconds(count, wait)):
                self._pass_on(taken)
            self._signals.unblock()
            self._call_hooks()
        _log.info("ended", pid=self.command.pid, status=status)
        self.folder.mark_ended()
        self._finish()
        for hook in self.hooks:
            hook.end(self, status)
        return status

    def _show(self) -> int:
        """Show what is new. The job does not end because its output cannot be shown."""
        try:
            return self.output.turn() if self._shows else 0
        except Exception as error:
            self._stop_showing(error)
            return 0

    def _finish(self) -> None:
        try:
            if self._shows:
                self.output.finish()
        except Exception as error:
            self._stop_showing(error)

    def _stop_showing(self, error: Exception) -> None:
        self._shows = False
        _notice(f"output is not shown any more ({type(error).__name__}: {error}); it is in {self.folder.path}")

    def _call_hooks(self) -> None:
        for hook in list(self.hooks):
            try:
                hook.turn(self)
            except Exception as error:
                self.hooks.remove(hook)
                _notice(f"{type(hook).__name__} ended: {type(error).__name__}: {error}")

    def _pass_on(self, taken: TakenSignal) -> None:
        """Give a signal to the command, if it does not have it already; Ctrl-C to the rank that is debugged."""
        _log.info("signal", number=taken.number, from_terminal=taken.from_terminal)
        if self._debug_rank >= 0 and taken.number == signal.SIGINT and self._interrupt_rank():
            return
        if self._debug_rank >= 0 or not taken.from_terminal:
            self.command.send_signal(taken.number)
        if taken.number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts >= _INTERRUPTS:
                raise RunAbandonedError

    def _interrupt_rank(self) -> bool:
        self.output.refresh()
        found = self.registry.latest(self._debug_rank)
        if found is None or found.shown != "terminal" or not is_running(found):
            return False
        if found.in_foreground:
            return True
        try:
            os.kill(found.pid, signal.SIGINT)
        except OSError as error:
            _log.info("no signal to the rank", rank=found.rank, pid=found.pid, why=str(error))
            return False
        return True


class TerminalModes:
    """Restores the modes of a terminal that a rank has used."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._modes: list[Any] = []

    def __enter__(self) -> TerminalModes:
        self._modes = termios.tcgetattr(self._descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # run may be in the background by now
        try:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._modes)
        except (termios.error, OSError):  # the terminal has gone
            pass
        finally:
            signal.signal(signal.SIGTTOU, before)


def _seconds(count: int, wait: float) -> float:
    if count < 0:
        return BEHIND_SECONDS
    return 0.0 if count >= _MUCH_BYTES else wait


def _notice(text: str) -> None:
    try:
        sys.stderr.write(f"breakranks: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass
