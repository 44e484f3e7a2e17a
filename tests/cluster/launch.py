"""Start the jobs of ``jobs/`` on hosts of the rig under real launchers, and know where they stand."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .host import inherited
from .nodes import INTERFACE, Host, Nodes
from .slurm import Slurm
from .transports import mpirun

JOBS = Path(__file__).parent / "jobs"
PYTHON = sys.executable
READY_WITHIN = 120.0
STANDS = 20  # looks

_ports = itertools.count(29500, 10)


@dataclass
class Job:
    """A job that has said that it is ready. ``ranks`` gives the host and the process id there of each rank."""

    folder: Path
    nodes: Nodes
    world: int
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def ranks(self) -> dict[int, tuple[Host, int]]:
        found = {}
        for rank in range(self.world):
            try:
                name, pid = (self.folder / f"ready.{rank}").read_text().split()
            except FileNotFoundError:
                continue
            found[rank] = (self.nodes[name], int(pid))
        return found

    def signal(self, rank: int, number: int) -> None:
        host, pid = self.ranks[rank]
        host.run(["kill", f"-{int(number)}", str(pid)], check=True)

    def steps(self) -> list[int]:
        """How far each rank of a job that counts its steps has come."""
        return [int((self.folder / f"step.{rank}").read_text()) for rank in range(self.world)]

    def wait_until_it_stands(self, within: float = 60.0) -> None:
        """Wait until no rank has made a step for a second: for so many looks, since a clock goes on in a stall."""
        before, alike = self.steps(), 0

        def stands() -> bool:
            nonlocal before, alike
            now = self.steps()
            before, alike = now, alike + 1 if now == before else 0
            return alike >= STANDS

        self.wait_for(stands, "the job to stand", within)

    def wait_until_it_goes_on(self, within: float = 120.0) -> None:
        before = self.steps()
        self.wait_for(lambda: min(self.steps()) > max(before), "the job to go on", within)

    def wait_until_ready(self) -> None:
        self.wait_for(self._is_ready, "every rank to be ready", READY_WITHIN)

    def _is_ready(self) -> bool:
        for one in self.started:
            if one.poll() is not None:
                raise RuntimeError(f"{one.args} ended before its job was ready\n{self.log()[-4000:]}")
        return len(self.ranks) == self.world

    def wait_for(self, condition: Callable[[], bool], what: str, within: float) -> None:
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(f"{self.folder.name}: waited {within:.0f} s for {what}\n{self.log()[-4000:]}")
            time.sleep(0.05)

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        """End what was started, and every process that has this job's folder in its environment."""
        for one in self.started:
            one.kill()
        end = time.monotonic() + 60
        while left := self._left():
            for pid in left:
                _kill(pid)
            if time.monotonic() > end:
                raise RuntimeError(f"{self.folder.name}: {left} do not end")
            time.sleep(0.02)
        for one in self.started:
            one.wait(60)

    def _left(self) -> list[int]:
        mark = f"RIG_DIR={self.folder}".encode()
        hosts = [host for host in self.nodes if os.path.exists(f"/proc/{host.pid}")]
        return [pid for host in hosts for pid in host.processes() if mark in _environment(pid)]


@contextmanager
def torchrun(
    nodes: Nodes, names: Sequence[str], program: str, *words: str, c10d: bool = False, per_host: int = 1
) -> Iterator[Job]:
    """A job of torchrun, an agent on each host. Without ``c10d`` its agents do not watch each other."""
    with _job(nodes, f"{program}-torchrun", len(names) * per_host) as job:
        port = next(_ports)
        for number, name in enumerate(names):
            where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={names[0]}:{port}", f"--rdzv-id={job.folder.name}"]
            if not c10d:
                where = [f"--node-rank={number}", f"--master-addr={names[0]}", f"--master-port={port}"]
            launcher = [PYTHON, "-m", "torch.distributed.run", f"--nnodes={len(names)}", f"--nproc-per-node={per_host}"]
            _start(job, nodes[name], [*launcher, *where, str(JOBS / f"{program}.py"), *words])
        job.wait_until_ready()
        yield job


@contextmanager
def by_hand(
    nodes: Nodes, names: Sequence[str], program: str, *words: str, python: str = PYTHON, per_host: int = 1
) -> Iterator[Job]:
    """A job without a launcher: the variables of torchrun, and nothing else."""
    with _job(nodes, f"{program}-by-hand", len(names) * per_host) as job:
        # On a bare host, the programs of the repository are not there.
        copy = job.folder / f"{program}.py"
        copy.write_text((JOBS / f"{program}.py").read_text())
        port = next(_ports)
        for rank in range(job.world):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(job.world),
                "LOCAL_RANK": str(rank % per_host),
                "LOCAL_WORLD_SIZE": str(per_host),
                "MASTER_ADDR": names[0],
                "MASTER_PORT": str(port),
            }
            _start(job, nodes[names[rank // per_host]], [python, str(copy), *words], **variables)
        job.wait_until_ready()
        yield job


@contextmanager
def under_mpirun(nodes: Nodes, names: Sequence[str], program: str, *words: str) -> Iterator[Job]:
    """A job of mpirun, which runs on the machine and comes to the hosts by ssh."""
    with _job(nodes, f"{program}-mpirun", len(names)) as job:
        variables = {**_variables(job), "MASTER_ADDR": names[0], "MASTER_PORT": str(next(_ports))}
        exported = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
        command = mpirun(nodes, names, len(names), *exported, PYTHON, str(JOBS / f"{program}.py"), *words)
        here = {**inherited(), "TMPDIR": str(job.folder)}  # what mpirun leaves goes with the folder
        with open(job.folder / "mpirun.log", "wb") as log:
            process = subprocess.Popen(command, env=here, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        job.started.append(process)
        try:
            job.wait_until_ready()
            yield job
        finally:
            # Asked, it ends what it has on the hosts; killed, it does not.
            job.started[0].terminate()
            job.started[0].wait(60)


@contextmanager
def under_srun(nodes: Nodes, slurm: Slurm, count: int, program: str, *words: str) -> Iterator[tuple[Job, str]]:
    """A job of srun in a batch job on ``count`` hosts, and the id of the batch job."""
    with _job(nodes, f"{program}-srun", count) as job:
        variables = {**_variables(job), "MASTER_PORT": str(next(_ports))}
        lines = [f"export {name}={value}\n" for name, value in variables.items()]
        lines += ["export MASTER_ADDR=$(hostname)\n"]
        lines += [
            f"srun -N{count} -n{count} {PYTHON} {JOBS}/{program}.py {' '.join(words)} >{job.folder}/srun.log 2>&1\n"
        ]
        number = slurm.submit("".join(lines), f"-N{count}", f"-n{count}")
        try:
            job.wait_until_ready()
            yield job, number
        finally:
            slurm.cancel(number)


@contextmanager
def _job(nodes: Nodes, name: str, world: int) -> Iterator[Job]:
    folder = nodes.folder / f"{name}-{next(_ports)}"
    folder.mkdir()
    job = Job(folder, nodes, world)
    try:
        yield job
    finally:
        job.end()


def _variables(job: Job) -> dict[str, str]:
    return {
        "RIG_DIR": str(job.folder),
        "BREAKRANKS_DIR": str(job.folder / "meet"),  # where ranks without torch meet
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }


def _start(job: Job, host: Host, command: Sequence[str], **variables: str) -> None:
    with open(job.folder / f"{host.name}.log", "ab") as log:
        job.started.append(host.popen(command, env={**_variables(job), **variables}, stdout=log, stderr=log))


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
