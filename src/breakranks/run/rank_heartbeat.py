"""Ranks that were kept after a crash wait only while run lives: it says so in a file that other hosts see."""

from __future__ import annotations

import time

from breakranks.log import Log
from breakranks.run.run_folder import RunFolder
from breakranks.run.run_session import RunSession

BEAT_SECONDS = 10.0  # a rank of another host waits for 180 s without a beat
_log = Log("run")


class RankHeartbeat:
    """A hook of the run: beats while the command runs, and releases the ranks at the end."""

    def __init__(self) -> None:
        self._next = 0.0

    def turn(self, session: RunSession) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + BEAT_SECONDS
            _touch(session.folder, "heartbeat")

    def end(self, session: RunSession, status: int) -> None:
        release_ranks(session.folder)


def release_ranks(folder: RunFolder) -> None:
    """Let all ranks end that wait for a debugger after a crash."""
    _touch(folder, "release")


def _touch(folder: RunFolder, name: str) -> None:
    try:
        (folder.registrations / name).touch()
    except OSError as error:
        _log.info("cannot touch", name=name, why=str(error))
