"""Run a command of breakranks in the test's own process, from its arguments to what it shows."""

from __future__ import annotations

import gc
import os
import resource
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from breakranks.cli.main import main

MOST_MEMORY = 2 << 30  # bytes beyond what the test's process has: this machine has others


class Done(NamedTuple):
    status: int
    out: str
    err: str
    peak: int  # MiB that it took


def run_here(argv: list[str]) -> Done:
    """A command in this process: with bounded memory, and it leaves neither threads nor files open."""
    before = (set(threading.enumerate()), set(os.listdir("/proc/self/fd")))
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as err,
    ):
        with redirect_stdout(out), redirect_stderr(err), bounded():
            start = memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
            status = main(argv)
            peak = memory("VmHWM") - start
        text = [(file.seek(0), file.read())[1] for file in (out, err)]
    gc.collect()
    assert set(threading.enumerate()) <= before[0]
    assert set(os.listdir("/proc/self/fd")) <= before[1]
    return Done(status, text[0], text[1], peak)


@contextmanager
def bounded() -> Iterator[None]:
    """Fail instead of taking all the memory of the machine; and leave the collector as it is."""
    threshold = gc.get_threshold()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ((memory("VmSize") << 20) + MOST_MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        gc.set_threshold(*threshold)


def memory(what: str, pid: int | str = "self") -> int:
    """MiB, by its name in /proc/PID/status; 0 if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(row.split()[1]) >> 10 for row in status.splitlines() if row.startswith(what)), 0)
