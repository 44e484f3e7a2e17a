"""A rank that has raised stays as it is, so that the launcher does not end the job before it was looked at."""

from __future__ import annotations

import _thread
import os
import signal
import socket
import sys
import time
from types import TracebackType

from breakranks.rank.launch.launch_config import HEARTBEAT, RELEASE, LaunchConfig
from breakranks.rank.launch.launched_rank import started

POST_MORTEM = "post-mortem"
POLL_SECONDS = 0.2
GONE_SECONDS = 60.0  # after which a rank no longer waits for a `run` on this host that has ended,
GONE_ELSEWHERE_SECONDS = 180.0  # and for one on another host: a network file system shows changes late


class RunPresence:
    """Whether this rank can still be looked at: `run` lives, and so does what started the rank."""

    def __init__(self, config: LaunchConfig) -> None:
        self._config = config
        self._is_here = config.is_here
        self._parent = os.getppid()
        self._seen = time.monotonic()
        self._heartbeat = self._heartbeat_time()

    def has_ended(self) -> bool:
        """Whether the wait is over: it was released, or `run` has been gone for a while."""
        if os.path.exists(f"{self._config.ranks}/{RELEASE}"):
            return True
        now = time.monotonic()
        if os.getppid() == self._parent and self._run_lives():
            self._seen = now
        return now - self._seen >= (GONE_SECONDS if self._is_here else GONE_ELSEWHERE_SECONDS)

    def _run_lives(self) -> bool:
        if self._is_here:
            return started(self._config.run_pid) == self._config.run_start
        before, self._heartbeat = self._heartbeat, self._heartbeat_time()
        return before != self._heartbeat

    def _heartbeat_time(self) -> int:
        try:
            return os.stat(f"{self._config.ranks}/{HEARTBEAT}").st_mtime_ns
        except OSError:
            return 0


class CrashWait:
    """The wait of one rank."""

    def __init__(self, config: LaunchConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._presence = RunPresence(config)
        self._released = False

    def stay(self, error: BaseException, trace: TracebackType | None) -> None:
        """Return when the rank may end."""
        if self._config.on_crash == POST_MORTEM and sys.version_info >= (3, 10):
            self._open_prompt(error.with_traceback(trace))
        else:
            self._keep()

    def _keep(self) -> None:
        before = {number: signal.signal(number, self._release) for number in (signal.SIGTERM, signal.SIGINT)}
        host = socket.gethostname()
        _say(
            f"rank {self._rank} is kept as it crashed: process {os.getpid()} on {host}. "
            f"Look at it with `breakranks attach {os.getpid()}`. "
            f"It ends with the job, or when this file is made: {self._config.ranks}/{RELEASE}"
        )
        while not self._released and not self._presence.has_ended():
            time.sleep(POLL_SECONDS)
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)

    def _release(self, *_: object) -> None:
        self._released = True

    def _open_prompt(self, error: BaseException) -> None:
        from breakranks.rank import api  # not on Python 3.8 and 3.9, which it does not run on

        _thread.start_new_thread(self._watch_prompt, ())
        try:
            api.post_mortem(error)
        finally:
            self._released = True

    def _watch_prompt(self) -> None:
        """In a thread: no console is at the prompt, and none will come."""
        from breakranks.rank import api  # as in _open_prompt

        while not self._released:
            time.sleep(POLL_SECONDS)
            agent = api.present()
            if self._presence.has_ended() and agent is not None and not agent.watched:
                agent.stop_state.release("`breakranks run` has ended")
                return


def _say(text: str) -> None:
    try:
        os.write(2, f"breakranks: {text}\n".encode())
    except OSError:
        pass
