"""Promise 1: whatever happens to us, no process that we looked at stays stopped.

A debugger that dies with -9 at the wrong moment can leave its target in a group stop (measured: 1 in 40
for one tool). So before the first look a small process is forked off, in a session of its own. It is told
which processes will be touched, and waits on a pipe. When we end, in whatever way, the pipe closes, and it
sends SIGCONT to those that are stopped now and were not before.
"""

from __future__ import annotations

import os
import signal
import time

from breakranks.observe.process_state import process_state, start_ticks, state_and_start, tracer_of

_GRACE_SECONDS = 10.0
_CLEAN = b"clean\n"


class Watchdog:
    """``with Watchdog() as dog: dog.guard(pid); ...look at pid...``"""

    def __init__(self) -> None:
        read_end, self._pipe = os.pipe()
        self._known: set[int] = set()
        child = os.fork()
        if child == 0:
            # Only os.* from here: this is a fork of an arbitrary Python process.
            try:
                os.close(self._pipe)
                _keep_watch(read_end)
            finally:
                os._exit(0)
        os.close(read_end)
        self._child = child

    def guard(self, pid: int) -> None:
        """Remember a process that is about to be looked at. A process that is stopped already stays so."""
        if pid not in self._known:
            state, started = state_and_start(pid)
            if state not in "TtZX":
                self._known.add(pid)
                os.write(self._pipe, f"{pid} {started}\n".encode())

    def close(self, clean: bool = True) -> None:
        """``clean``: every look ended by itself, so a process that is stopped now was stopped by others."""
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
    _let_go_of_files(read_end)
    told = b""
    while chunk := os.read(read_end, 65536):
        told += chunk
    if not told.endswith(_CLEAN):
        release([tuple(map(int, line.split())) for line in told.decode().splitlines()])


def _let_go_of_files(keep: int) -> None:
    """Whoever reads our standard output must see its end when we end, not when the watchdog does."""
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
    """Continue what is stopped and has no living tracer; wait for tracers that are still at work."""
    deadline = time.monotonic() + _GRACE_SECONDS
    left = set(touched)
    while left and time.monotonic() < deadline:
        for pid, started in tuple(left):
            if start_ticks(pid) != started or tracer_of(pid) == 0:
                left.discard((pid, started))
                if start_ticks(pid) == started and process_state(pid) == "T":
                    os.kill(pid, signal.SIGCONT)
        if left:
            time.sleep(0.02)
