"""Starts the process that copies the output of a rank to where the launcher reads it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from breakranks.rank.launch.launched_rank import started

_KEPT = ("LD_LIBRARY_PATH", "PYTHONHOME")  # Python itself may need it to start
_LAST_INHERITED = 200  # descriptors above are closed by exec
_EXIT_SECONDS = 1.0  # that a rank waits at its end for its last lines to be copied
_MAX_READ_BYTES = 1 << 16
_POLL_SECONDS = 0.005


class RelaySource(NamedTuple):
    """A file to copy, from where on, and a descriptor of where to."""

    path: str
    offset: int
    original: int


class RelayProcess(NamedTuple):
    """A relay that runs. ``paths`` are the files that it copies."""

    pid: int
    paths: tuple[str, ...]

    def wait_until_copied(self) -> None:
        """Wait a moment until everything is copied. Slurm kills what a task has left as soon as it has ended."""
        until = time.monotonic() + _EXIT_SECONDS
        while time.monotonic() < until and not self._is_copied():
            time.sleep(_POLL_SECONDS)

    def _is_copied(self) -> bool:
        try:
            names = os.listdir(f"/proc/{self.pid}/fd")
            paths = {name: os.readlink(f"/proc/{self.pid}/fd/{name}") for name in names}
            files = [(name, path) for name, path in paths.items() if path in self.paths]
            if names and len(files) < len(self.paths):
                return False  # it is starting
            return not any(_has_whole_line(path, _position(self.pid, name)) for name, path in files)
        except (OSError, ValueError, IndexError):
            return True  # it has ended


def _has_whole_line(path: str, position: int) -> bool:
    """Whether there is more to copy. A line without its end is copied when this process has ended."""
    with open(path, "rb") as file:
        file.seek(position)
        return b"\n" in file.read(_MAX_READ_BYTES)


def _position(pid: int, fd: str) -> int:
    with open(f"/proc/{pid}/fdinfo/{fd}") as file:
        return int(file.read().split()[1])


def start_relay(script: str, registration: str, prefix: str, sources: Mapping[int, RelaySource]) -> RelayProcess:
    """Start a relay for this process. ``sources`` has what to copy for standard output (1) and error (2).

    It is no child of the rank, in no session of it, and has no variable from which it could be taken for a rank.
    """
    python = sys.executable
    if not python or not os.path.basename(python).startswith("python") or not os.path.exists(script):
        raise OSError("no Python was found for the relay")
    isolated = ["-s", "-S"] if "PYTHONHOME" in os.environ else ["-I", "-S"]
    words = [python, *isolated, script, str(os.getpid()), str(started(os.getpid())), registration, prefix]
    for fd in (1, 2):
        source = sources.get(fd, RelaySource("", 0, -1))
        words += [source.path, str(source.offset)]
    environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        _become_relay(words, environ, {fd: source.original for fd, source in sources.items()}, writes)
    os.close(writes)
    answer = os.read(reads, 32)
    os.close(reads)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:  # a process that was started with SIGCHLD ignored has none to wait for
        pass
    return RelayProcess(int(answer), tuple(os.path.realpath(source.path) for source in sources.values()))


def _become_relay(words: list[str], environ: dict[str, str], originals: Mapping[int, int], told: int) -> None:
    """In the child: leave the session of the rank, and let its parent not wait for the relay."""
    try:
        import signal

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.write(told, str(os.getpid()).encode())
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(originals.get(fd, null), fd)
        os.closerange(3, _LAST_INHERITED)
        os.chdir("/")
        os.execve(words[0], words, environ)
    finally:
        os._exit(127)
