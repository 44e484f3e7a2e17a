"""The watchdog: however breakranks ends, no process that it inspected stays stopped.

A debugger that is killed with SIGKILL at the wrong moment can leave its target in a group stop (measured: 1 in 40 for
one tool). So before the first inspection this process forks a small one, in a session of its own. It receives the pids
of the processes to be inspected, and waits on a pipe. When the parent ends, in whatever way, the pipe closes, and the
watchdog sends SIGCONT to those processes that are stopped now and were not before.
"""

from __future__ import annotations

import os
import signal
import time

from breakranks.observe.process_state import process_state, start_ticks, state_and_start, tracer_of

_GRACE_SECONDS = 10.0
_CLEAN = b"clean\n"


class Watchdog:
    """``with Watchdog() as dog: dog.guard(pid); …``, then inspect the process."""

    def __init__(self) -> None:
        read_end, self._pipe = os.pipe()
        self._known: set[int] = set()
        child = os.fork()
        if child == 0:
            # Only os functions from here: this is a fork of an arbitrary Python process.
            try:
                os.close(self._pipe)
                _keep_watch(read_end)
            finally:
                os._exit(0)
        os.close(read_end)
        self._child = child

    def guard(self, pid: int) -> None:
        """Register a process that is about to be inspected. One that is already stopped stays stopped."""
        if pid not in self._known:
            state, started = state_and_start(pid)
            if state not in "TtZX":
                self._known.add(pid)
                os.write(self._pipe, f"{pid} {started}\n".encode())

    def close(self, clean: bool = True) -> None:
        """End the watchdog. ``clean``: every inspection ended by itself, so others stopped what is stopped now."""
        if self._pipe >= 0:
            if clean:
                os.write(self._pipe, _CLEAN)
            os.close(self._pipe)
            self._pipe = -1
            os.waitpid(self._child, 0)

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(clean=kind is None)


def _keep_watch(read_end: int) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    _close_files(read_end)
    received = b""
    while chunk := os.read(read_end, 65536):
        received += chunk
    if not received.endswith(_CLEAN):
        release([tuple(map(int, line.split())) for line in received.decode().splitlines()])


def _close_files(keep: int) -> None:
    """Close all files but one: a reader of standard output must see its end when the parent ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != keep:
            try:
                os.close(number)
            except OSError:
                pass


def release(touched: list[tuple[int, ...]]) -> None:
    """Continue the processes that are stopped and have no tracer. Wait for tracers that are still attached."""
    deadline = time.monotonic() + _GRACE_SECONDS
    left = set(touched)
    while left and time.monotonic() < deadline:
        for pid, started in tuple(left):
            if start_ticks(pid) != started or tracer_of(pid) == 0:
                left.discard((pid, started))
                if start_ticks(pid) == started and process_state(pid) == "T":
                    try:
                        os.kill(pid, signal.SIGCONT)
                    except OSError:  # it has just ended, or has another owner by now
                        pass
        if left:
            time.sleep(0.02)
