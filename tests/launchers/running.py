"""Start real launchers, wait for what they start, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from breakranks.jobs.found_jobs import FoundJob, LocalJobs, StackOf
from breakranks.jobs.local_jobs import find_jobs
from breakranks.observe.process_table import ProcessTable, read_table
from support.processes import Processes
from support.waiting import DEADLINE_SECONDS, free_port, wait_for

HERE = Path(__file__).parent
SLEEPER = str(HERE / "sleeper_program.py")
PYTHON = sys.executable
BIN = Path(sys.executable).parent
TORCHRUN = str(BIN / "torchrun")


class Launch:
    """Launchers of one test and all that they start. What they print goes to the file ``log``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.processes = Processes(folder)

    def __enter__(self) -> Launch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.__exit__(kind, error, trace)

    @property
    def started(self) -> list[subprocess.Popen[Any]]:
        return self.processes.started

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[Any]:
        with open(self.log, "ab") as log:
            return self.processes.start(
                command, {"OMP_NUM_THREADS": "1", **(env or {})}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def by_hand(self, count: int, *script: str, env: Mapping[str, str] | None = None) -> list[subprocess.Popen[Any]]:
        """Ranks as people start them without a launcher: there in less than half the time of torchrun's."""
        job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        return [
            self.start(PYTHON, *script, env={**job, "LOCAL_WORLD_SIZE": str(count), **(env or {}), "RANK": str(rank)})
            for rank in range(count)
        ]

    def torchrun(self, ranks: int, *script: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[Any]:
        return self.start(
            TORCHRUN, f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1", f"--master-port={free_port()}",
            *script, env=env,
        )  # fmt: skip

    def pids(self) -> list[int]:
        """Every living process of this test."""
        return self.processes.living()

    def ready(self, kind: str, count: int, deadline: float = DEADLINE_SECONDS) -> list[int]:
        """Pids of the ``rank`` or ``helper`` programs, once there are so many."""

        def enough() -> list[int] | None:
            pids = [int(path.suffix[1:]) for path in self.folder.glob(f"{kind}.[0-9]*") if path.suffix != ".new"]
            if len(pids) >= count:
                return sorted(pids)
            ended = [process.args for process in self.started if process.poll() not in (None, 0)]
            if ended and not self.pids():
                raise AssertionError(f"ended before {count} {kind} processes were there: {ended}")
            return None

        return wait_for(f"{count} {kind} processes", enough, deadline)

    def look(self, *, stack_of: StackOf | None = None) -> tuple[ProcessTable, LocalJobs]:
        table = read_table()
        return table, find_jobs(table, stack_of=stack_of)

    def jobs(self, *, stack_of: StackOf | None = None) -> list[FoundJob]:
        """The jobs of this test only: others may run on the machine."""
        _, found = self.look(stack_of=stack_of)
        mine = set(self.pids())  # afterwards: to ask whether it lives reaps a child that does not
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
