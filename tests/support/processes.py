"""The manager of all processes that tests start. Each ends with its test, and is reported if the test fails."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import evidence
from .waiting import DEADLINE_SECONDS, POLL_SECONDS

if TYPE_CHECKING:
    from typing import Self

# Variables of a surrounding job, shell or user, which the processes of a test must not inherit. COLUMNS and LINES are
# set by readline in the process that starts the lanes, and would hide the size of a test's own terminal.
FOREIGN = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "TORCHELASTIC", "SLURM", "OMPI_", "PMI", "ACCELERATE"),
    *("BREAKRANKS_", "COLUMNS", "LINES"),
)
MARK = "BREAKRANKS_TEST_PROCESSES"


def inherited() -> dict[str, str]:
    """The environment of this process, without variables that would make a job of the test part of another."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def defaults_for_signals() -> None:
    """Restore the default actions of signals: in the background or under nohup they are ignored, also in children."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def alive(pid: int) -> bool:
    """Whether the process has not exited. A zombie has exited."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Processes:
    """The processes of one test. All have a mark in their environment, so that orphans are found and ended as well."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[Any]] = []
        self.mark = uuid.uuid4().hex

    def __enter__(self) -> Self:
        evidence.watch(self.told)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            evidence.keep(self.seen())
        evidence.unwatch(self.told)
        self.end()

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a process of this test."""
        return {**inherited(), **(more or {})}

    def start(self, command: Sequence[str], env: Mapping[str, str] | None = None, **how: Any) -> subprocess.Popen[Any]:
        """Start a command in the test's folder; ``env`` is added to its environment, ``how`` goes to Popen."""
        how = {"cwd": self.folder, "preexec_fn": defaults_for_signals, **how}
        process = subprocess.Popen(command, env={**self.environ(env), MARK: self.mark}, **how)
        self.started.append(process)
        return process

    def call(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        deadline: float = DEADLINE_SECONDS,
        **how: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with its output. If it times out, it still lives when the failure is reported."""
        how = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            **how,
        }
        process = self.start(command, env, **how)
        out, err = process.communicate(timeout=deadline)
        self.started.remove(process)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def living(self) -> list[int]:
        """Every living process of this test, including orphans."""
        marked = f"{MARK}={self.mark}".encode()
        found = {process.pid for process in self.started if process.poll() is None}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if marked in file.read().split(b"\0"):
                            found.add(int(name))
                except OSError:
                    continue
        return sorted(pid for pid in found if alive(pid))

    def seen(self) -> str:
        """A report of the processes now."""
        folder = evidence.of_folder(self.folder) if self.folder is not None else ""
        return "\n".join([self.told(), evidence.of_processes(self.living()), folder])

    def told(self) -> str:
        """The exit statuses of those that have ended, and the unread output in the pipes of all."""
        lines = []
        for one in self.started:
            if one.poll() is not None:
                lines.append(f"-- ended with {one.returncode}: {one.args}")
            for stream in (one.stdout, one.stderr):
                if stream is not None and not stream.closed and (text := _unread(stream.fileno())):
                    lines.append(f"-- output of {one.args}\n{text}")
        return "\n".join(lines)

    def end(self) -> None:
        """End them by pid until none is left: pools and launchers replace processes that end."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while left := self.living():
            for pid in left:
                for number in (signal.SIGKILL, signal.SIGCONT):
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        pass
            if time.monotonic() > deadline:
                raise AssertionError(f"could not end {left}\n{evidence.of_processes(left)}")
            time.sleep(POLL_SECONDS)
        for process in self.started:
            process.wait(DEADLINE_SECONDS)


def _unread(fd: int) -> str:
    os.set_blocking(fd, False)
    try:
        return os.read(fd, evidence.TAIL_CHARACTERS).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.set_blocking(fd, True)
