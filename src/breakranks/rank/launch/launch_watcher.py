"""A thread in a rank: before the disk of its output is full, the output goes elsewhere, because a write would fail."""

from __future__ import annotations

import _thread
import os
import signal

from breakranks.rank import AGENT_THREAD
from breakranks.rank.launch.launch_config import LaunchConfig
from breakranks.rank.launch.output_files import OutputStream, RedirectedOutput, file_identity

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
        self._diverted: dict[int, tuple[int, int]] = {}  # by stream: device and inode of what it is meanwhile
        self._said: set[bool] = set()

    def begin(self) -> bool:
        """Start the thread, if there is something to look at."""
        if not self._streams or self._keep_free <= 0:
            return False
        self._ending.acquire()
        # A signal that the job waits for must not come to the thread, which inherits the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True

    def end(self) -> None:
        """Let the thread end before the interpreter does."""
        if self._ending.locked():
            self._ending.release()

    def _run(self) -> None:
        _name_thread()
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
        left, least = self._left_of_limit()
        if free < self._keep_free:
            self._divert(f"less than {self._keep_free >> 20} MiB are free for {self._folder}")
        elif left < least:
            self._divert("the files of the output have nearly reached the largest size of a file (ulimit -f)")
        elif self._is_full and free >= ENOUGH_FACTOR * self._keep_free:
            self._restore()
        is_near = free < NEAR_FACTOR * self._keep_free or left < NEAR_FACTOR * least
        return SHORT_PAUSE_SECONDS if is_near else PAUSE_SECONDS

    def _left_of_limit(self) -> tuple[int, int]:
        """How much the larger file may still grow, and how much of that must be left; zeros: it has no limit."""
        limit = largest_file_bytes()
        if limit < 0:
            return 0, 0
        return limit - max(os.fstat(stream.file).st_size for stream in self._streams), min(self._keep_free, limit // 4)

    def _divert(self, reason: str) -> None:
        """Let the streams be something else, as far as they are still the files: the job may have replaced them.

        Again and again: it may also have put its own copy of a file back.
        """
        self._is_full = True
        places = {
            stream.fd: elsewhere(stream, self._folder)
            for stream in self._streams
            if file_identity(stream.fd) == stream.identity
        }
        if places:
            self._say(f"{reason}: {_outcome(places)}")
        for fd, place in places.items():
            _point(fd, place)
            self._diverted[fd] = file_identity(fd)

    def _restore(self) -> None:
        self._is_full = False
        for stream in self._streams:
            is_diverted = self._diverted.pop(stream.fd, None) == file_identity(stream.fd)
            if is_diverted and file_identity(stream.file) == stream.identity:
                _point(stream.fd, stream.file)
        self._say(f"there is room again for {self._folder}: output is written there again")

    def _say(self, text: str) -> None:
        """Write it into the rank's file, once for each state."""
        stream = self._streams[-1]
        if self._is_full not in self._said and file_identity(stream.file) == stream.identity:
            self._said.add(self._is_full)
            try:
                os.write(stream.file, f"breakranks: {text}\n".encode())
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


def largest_file_bytes() -> int:
    """The limit of the size of a file, -1 if there is none. Not from resource: a job may have a module of that name."""
    with open("/proc/self/limits", encoding="ascii") as file:
        words = next((line.split() for line in file if line.startswith("Max file size")), [])
    return int(words[3]) if len(words) > 3 and words[3].isdigit() else -1


def elsewhere(stream: OutputStream, folder: str) -> int:
    """The original of a stream, or -1 if that is on the same disk, or was closed by the job."""
    try:
        is_known = file_identity(stream.saved) == stream.original
        return stream.saved if is_known and stream.original[0] != os.stat(folder).st_dev else -1
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
