"""Start real launchers, wait for what they start, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from breakranks.jobs.find import Found, FoundJob, StackOf, find_jobs
from breakranks.observe.table import Table, read_table

HERE = Path(__file__).parent
SLEEPER = str(HERE / "sleeper_program.py")
PYTHON = sys.executable
BIN = Path(sys.executable).parent
MARK = "BREAKRANKS_TEST_LAUNCH"
# What a surrounding job may have left in our own environment; a test's job must not inherit it.
FOREIGN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "GROUP_",
    "TORCHELASTIC",
    "SLURM",
    "OMPI_",
    "PMI",
    "ACCELERATE",
)

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T | None], deadline: float = 120.0) -> T:
    """The first true answer of ``condition``; fails with ``what`` after the deadline."""
    end = time.monotonic() + deadline
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"after {deadline:.0f} s still not: {what}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Launch:
    """Processes of one test. All carry a mark in their environment, so that orphans are found too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []
        self.log = folder / "log"

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        # Twice over: a launcher may start something while it is being ended.
        for _ in range(3):
            for pid in self.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for process in self.started:
                process.wait(timeout=60)
            if not self.pids():
                return

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                command,
                env={**inherited, **(env or {}), MARK: self.mark, "OMP_NUM_THREADS": "1"},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def pids(self) -> list[int]:
        """Every living process of this test."""
        marked = f"{MARK}={self.mark}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if marked in file.read().split(b"\0"):
                            found.append(int(name))
                except OSError:
                    pass
        return found

    def ready(self, kind: str, count: int, deadline: float = 120.0) -> list[int]:
        """Pids of the ``rank`` or ``helper`` programs, once there are so many."""

        def enough() -> list[int] | None:
            pids = [int(path.suffix[1:]) for path in self.folder.glob(f"{kind}.[0-9]*") if path.suffix != ".new"]
            if len(pids) >= count:
                return sorted(pids)
            ended = [process.args for process in self.started if process.poll() not in (None, 0)]
            if ended and not self.pids():
                raise AssertionError(f"ended before {count} {kind} processes were there: {ended}")
            return None

        try:
            return wait_for(f"{count} {kind} processes", enough, deadline)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.log.read_text(errors='replace')[-3000:]}") from None

    def look(self, *, stack_of: StackOf | None = None) -> tuple[Table, Found]:
        table = read_table()
        return table, find_jobs(table, stack_of=stack_of)

    def jobs(self, *, stack_of: StackOf | None = None) -> list[FoundJob]:
        """The jobs of this test only: others may run on the machine."""
        mine = set(self.pids())
        _, found = self.look(stack_of=stack_of)
        return [job for job in found.jobs if mine & {rank.pid for rank in job.ranks}]

    def job(self, *, stack_of: StackOf | None = None) -> FoundJob:
        jobs = self.jobs(stack_of=stack_of)
        assert len(jobs) == 1, jobs
        return jobs[0]


def numbers(job: FoundJob) -> list[int]:
    return [rank.rank for rank in job.ranks]


def rank_of(pid: int, name: str = "RANK") -> int:
    """What the process itself was told."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        for item in file.read().split(b"\0"):
            if item.startswith(name.encode() + b"="):
                return int(item.partition(b"=")[2])
    raise AssertionError(f"pid {pid} has no {name}")


def assert_ranks_are(job: FoundJob, pids: Sequence[int], name: str = "RANK") -> None:
    """Every program of ours is a rank, under the number that its launcher gave it, and nobody else is."""
    assert {rank.pid: rank.rank for rank in job.ranks} == {pid: rank_of(pid, name) for pid in pids}
