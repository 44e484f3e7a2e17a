"""A thread in a rank: before the disk of its output is full, the output goes elsewhere, because a write would fail."""

from __future__ import annotations

import _thread
import os
import signal

from breakranks.rank import AGENT_THREAD
from breakranks.rank.launch.launch_config import LaunchConfig
from breakranks.rank.launch.output_files import OutputStream, RedirectedOutput

PAUSE_SECONDS = 2.0
SHORT_PAUSE_SECONDS = 0.1  # when little more than the limit is left
NEAR_FACTOR = 16
ENOUGH_FACTOR = 2  # times the limit must be free before output goes to the files again


class LaunchWatcher:
    """Looks at the free space of the folder of the run until the rank ends."""

    def __init__(self, config: LaunchConfig, output: RedirectedOutput | None) -> None:
        self._folder = config.run_folder
        self._keep_free = config.keep_free_bytes
        self._streams = [stream for stream in (output.streams if output else ()) if stream.is_redirected]
        self._ending = _thread.allocate_lock()
        self._is_full = False
        self._said: set[bool] = set()

    def begin(self) -> bool:
        """Start the thread, if there is something to look at."""
        if not self._streams or self._keep_free <= 0:
            return False
        self._ending.acquire()
        _thread.start_new_thread(self._run, ())
        return True

    def end(self) -> None:
        """Let the thread end before the interpreter does."""
        if self._ending.locked():
            self._ending.release()

    def _run(self) -> None:
        _name_thread()
        # A signal that the job waits for with sigwait must not come to this thread.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        pause = 0.0
        while not self._ending.acquire(True, pause):
            try:
                pause = self._look()
            except Exception:
                return

    def _look(self) -> float:
        free = free_bytes(self._folder)
        if free < 0:
            return PAUSE_SECONDS
        if not self._is_full and free < self._keep_free:
            self._divert(True)
        elif self._is_full and free >= ENOUGH_FACTOR * self._keep_free:
            self._divert(False)
        return SHORT_PAUSE_SECONDS if free < NEAR_FACTOR * self._keep_free else PAUSE_SECONDS

    def _divert(self, is_full: bool) -> None:
        self._is_full = is_full
        places = {stream.fd: elsewhere(stream, self._folder) if is_full else stream.file for stream in self._streams}
        if is_full:
            self._say(f"less than {self._keep_free >> 20} MiB are free for {self._folder}: {_outcome(places)}")
        for fd, place in places.items():
            _point(fd, place)
        if not is_full:
            self._say(f"there is room again for {self._folder}: output is written there again")

    def _say(self, text: str) -> None:
        """Write it into the rank's file while it is still, or again, the output."""
        if self._is_full not in self._said:
            self._said.add(self._is_full)
            try:
                os.write(2, f"breakranks: {text}\n".encode())
            except OSError:
                pass


def _name_thread() -> None:
    try:
        with open(f"/proc/self/task/{_thread.get_native_id()}/comm", "w") as file:
            file.write(AGENT_THREAD)
    except OSError:
        pass


def free_bytes(folder: str) -> int:
    """The bytes that this user may still write, -1 if that is not known."""
    try:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    except OSError:
        return -1


def elsewhere(stream: OutputStream, folder: str) -> int:
    """The original of a stream, or -1 if that is on the same disk, or was closed by the job."""
    try:
        original = os.fstat(stream.saved)
        is_known = (original.st_dev, original.st_ino) == stream.original
        return stream.saved if is_known and original.st_dev != os.stat(folder).st_dev else -1
    except OSError:
        return -1


def _outcome(places: dict[int, int]) -> str:
    if all(place < 0 for place in places.values()):
        return "output is discarded from here on, so that the job can go on"
    return "output goes to where it went without breakranks"


def _point(fd: int, place: int) -> None:
    if place >= 0:
        os.dup2(place, fd)
        return
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, fd)
    os.close(null)
