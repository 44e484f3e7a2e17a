"""Ending a job on request: the launcher is signalled first, as Ctrl-C or a scheduler would do."""

from __future__ import annotations

import os
import signal
import time

from breakranks.rank.run_dir import started

_GRACE_SECONDS = 10.0


def end_job(launcher: int, ranks: list[int]) -> list[int]:
    """Terminate the launcher, or the ranks if there is none; kill what remains; return the pids that still remain."""
    known = {pid: started(pid) for pid in (*([launcher] if launcher else []), *ranks)}
    _signal([launcher] if launcher else ranks, known, signal.SIGTERM)
    left = _wait(ranks, known)
    _signal(left, known, signal.SIGKILL)
    return _wait(left, known)


def _wait(pids: list[int], known: dict[int, int]) -> list[int]:
    until = time.monotonic() + _GRACE_SECONDS
    while True:
        left = [pid for pid in pids if known[pid] and started(pid) == known[pid]]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.05)


def _signal(pids: list[int], known: dict[int, int], number: signal.Signals) -> None:
    for pid in pids:
        if known[pid] and started(pid) == known[pid]:
            try:
                os.kill(pid, number)
            except OSError:
                pass
