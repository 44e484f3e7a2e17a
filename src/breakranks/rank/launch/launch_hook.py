"""What happens in each process of a job before its program: in a rank, output is redirected and the agent starts.

Called by the sitecustomize of the startup folder. Whatever fails here, the program runs as it would without breakranks.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
from types import TracebackType
from typing import Any

from breakranks.rank.launch import debug_terminal, launched_rank
from breakranks.rank.launch.crash_wait import CrashWait
from breakranks.rank.launch.launch_config import LaunchConfig, read_config
from breakranks.rank.launch.launch_registration import RankRecord, export_mark, is_in_rank
from breakranks.rank.launch.launch_watcher import LaunchWatcher
from breakranks.rank.launch.output_files import (
    LAUNCHER,
    MERGED,
    OWN_FILE,
    RELAY,
    SUFFIXES,
    RedirectedOutput,
    buffer_by_line,
    close_in_children,
    redirect_output,
    restore_output,
)

FIRST_AGENT_PYTHON = (3, 10)
_SHOWN = {LAUNCHER: "tail", OWN_FILE: "tail", MERGED: "tail", RELAY: "relay"}


class LaunchedProcess:
    """This process, if it is a rank: what its end needs."""

    def __init__(self, config: LaunchConfig, record: RankRecord) -> None:
        self.config = config
        self.record = record
        self.output: RedirectedOutput | None = None
        self.watcher: LaunchWatcher | None = None
        self._has_raised = False
        self._excepthook = sys.excepthook

    def install(self) -> None:
        """See an uncaught exception and the end of the program."""
        sys.excepthook = self._raised
        atexit.register(self._end)

    @property
    def _is_here(self) -> bool:
        """False in a forked child, which has inherited the functions of the rank."""
        return os.getpid() == self.record.pid

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not self._is_here:
            self._excepthook(kind, error, trace)
            return
        try:
            import traceback  # when something is raised: not every program imports it

            text = "".join(traceback.format_exception(kind, error, trace))
            self.record.raised(kind, error, text)
            self._has_raised = True
        except Exception:
            pass
        self._excepthook(kind, error, trace)
        # A library may call the hook for an exception that it has caught: Python sets last_value before it calls it.
        is_last = getattr(sys, "last_value", None) is error
        if self.config.on_crash and is_last and not issubclass(kind, KeyboardInterrupt):
            CrashWait(self.config, self.record.rank.rank).stay(error, trace)

    def _end(self) -> None:
        if not self._is_here:
            return
        for step in (_flush_stdout, _flush_stderr, self._record_end, self._wait_until_copied, self._end_watcher):
            try:
                step()
            except Exception:  # the streams of the user may be closed, the disk full
                pass

    def _record_end(self) -> None:
        if not self._has_raised:
            self.record.ended()

    def _wait_until_copied(self) -> None:
        if self.output is not None and self.output.relay is not None:
            self.output.relay.wait_until_copied()

    def _end_watcher(self) -> None:
        if self.watcher is not None:
            self.watcher.end()


def _flush_stdout() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _flush_stderr() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()


def begin(startup: str, values: str) -> None:
    """Find out what this process is, and do what a rank needs. ``values`` are its variables that name a rank."""
    config = read_config(startup)
    rank = launched_rank.launched_rank(os.environ)
    if rank is None:
        if not launched_rank.passes_on():
            export_mark(f"{config.token}:::0:{os.getpid()}", values)
        return
    is_nested = is_in_rank(config.token)
    record = RankRecord(config, rank)
    export_mark(record.mark, values)
    process = LaunchedProcess(config, record)
    if record.replaces_rank:
        buffer_by_line(record.redirected)
    else:
        process.output = _redirected(config, record, is_nested)
        if process.output is not None:
            close_in_children(process.output.streams)
    process.install()
    _enable_faulthandler()
    process.watcher = LaunchWatcher(config, process.output)
    has_agent = config.preload_agent and sys.version_info >= FIRST_AGENT_PYTHON
    if process.watcher.begin() or has_agent:
        allow_forks()
    if has_agent:
        _start_agent()


def _redirected(config: LaunchConfig, record: RankRecord, is_nested: bool = False) -> RedirectedOutput | None:
    """Redirect the output of this rank, and tell `run` where to. ``is_nested``: another rank has started its job."""
    if record.rank.rank == config.debug_rank and config.is_here:
        taken = debug_terminal.take_terminal(config.terminal)
        if taken is not None:
            shown = dict.fromkeys(("shown", "shown_out", "shown_err"), "terminal")
            record.update(ready=True, in_foreground=taken.in_foreground, **shown)
            return None
    try:
        prefix = f"[{socket.gethostname()}:{record.rank.rank}] "
        output = redirect_output(config, record.stem, record.path(), prefix, is_nested=is_nested)
    except Exception:
        record.update(ready=True)
        raise
    try:
        record.update(ready=True, **_output_fields(output))
    except Exception:
        restore_output(output.streams)  # `run` would not show what it does not know of
        raise
    return output


def _output_fields(output: RedirectedOutput) -> dict[str, Any]:
    shown = {stream.fd: _SHOWN.get(stream.kind, "launcher") for stream in output.streams}
    return {
        "out": output.streams[0].path,
        "err": output.streams[1].path,
        "shown": shown[1] if shown[1] != "launcher" else shown[2],
        "shown_out": shown[1],
        "shown_err": shown[2],
        "offsets": {SUFFIXES[stream.fd]: stream.offset for stream in output.streams if stream.is_redirected},
    }


def _enable_faulthandler() -> None:
    try:
        import faulthandler  # a build of Python may lack it

        if not faulthandler.is_enabled():
            faulthandler.enable(file=2)
    except Exception:
        pass


def _start_agent() -> None:
    """Start the agent now: consoles and breakpoints then need no ptrace."""
    from breakranks.rank import api  # not on Python 3.8 and 3.9, which it does not run on

    api.preload()


def allow_forks() -> None:
    """From 3.12 on, Python warns of a fork in a process with threads. The threads of breakranks are no reason to."""
    if sys.version_info >= (3, 12):
        import re  # only where it is needed
        import warnings

        # Of plain objects: programs send their filters to other processes, which may not know breakranks.
        message = re.compile(r"This process \(pid=.*multi-threaded")
        warnings.filters.insert(0, ("ignore", message, DeprecationWarning, None, 0))  # type: ignore[attr-defined]
        warnings._filters_mutated()  # type: ignore[attr-defined]
