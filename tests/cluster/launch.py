"""Start the jobs of ``jobs/`` on hosts of the rig under real launchers, and know where they stand."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support import evidence
from support.waiting import DEADLINE_SECONDS, wait_for

from .host import inherited
from .nodes import INTERFACE, Host, Nodes, Process
from .slurm import Slurm
from .transports import mpirun

JOBS = Path(__file__).parent / "jobs"
PYTHON = sys.executable
PY_SPY = Path(sys.executable).parent / "py-spy"
STANDS = 20  # looks
LOOK_SECONDS = 0.05

running: list[Job] = []  # all that are, for the report of a test that fails
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

    def start(self, host: Host, command: Sequence[str], variables: Mapping[str, str]) -> Process:
        """A process of the job, in its folder. What it says goes into the host's log there."""
        env = {"RIG_DIR": str(self.folder), **variables}
        with open(self.folder / f"{host.name}.log", "ab") as log:
            process = host.popen(command, env=env, cwd=self.folder, stdout=log, stderr=log)
        self.started.append(process)
        return process

    def signal(self, rank: int, number: int) -> None:
        host, pid = self.ranks[rank]
        host.run(["kill", f"-{int(number)}", str(pid)], check=True)

    def steps(self) -> list[int]:
        """How far each rank of a job that counts its steps has come."""
        return [int((self.folder / f"step.{rank}").read_text()) for rank in range(self.world)]

    def wait_until_it_stands(self) -> None:
        """Wait until no rank has made a step for a second: for so many looks, since a clock goes on in a stall."""
        before, alike = self.steps(), 0

        def stands() -> bool:
            nonlocal before, alike
            time.sleep(LOOK_SECONDS)
            now = self.steps()
            before, alike = now, alike + 1 if now == before else 0
            return alike >= STANDS

        wait_for("the job stands", stands)

    def wait_until_it_goes_on(self) -> None:
        before = self.steps()
        wait_for("the job goes on", lambda: min(self.steps()) > max(before))

    def wait_until_ready(self) -> None:
        wait_for("every rank is ready", self._is_ready)

    def _is_ready(self) -> bool:
        for one in self.started:
            assert one.poll() is None, f"{one.args} ended before its job was ready"
        return len(self.ranks) == self.world

    def functions(self) -> list[str]:
        """The functions that each rank is in, innermost first; none where it could not be read while it ran."""
        found = []
        for host, pid in self.ranks.values():
            dump = host.run([PY_SPY, "dump", "--nonblocking", "--pid", str(pid)]).stdout
            lines = [line.split() for line in dump.splitlines() if line.startswith("    ")]
            found.append(" ".join(words[0] for words in lines))
        return found

    def seen(self) -> str:
        """The end of what its processes have said, and which of them live."""
        logs = sorted(self.folder.glob("*.log"))
        said = [f"-- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs]
        return "\n".join([*said, f"-- ranks {self.ranks}, processes {self._left()}"])

    def end(self) -> None:
        """End what was started, and every process that has this job's folder in its environment."""
        for one in self.started:
            one.kill()
        wait_for(f"the end of {self.folder.name}", self._is_ended)
        for one in self.started:
            one.wait(DEADLINE_SECONDS)

    def _is_ended(self) -> bool:
        left = self._left()
        for pid in left:
            _kill(pid)
        return not left

    def _left(self) -> list[int]:
        mark = f"RIG_DIR={self.folder}".encode()
        hosts = [host for host in self.nodes if os.path.exists(f"/proc/{host.pid}")]
        return [pid for host in hosts for pid in host.processes() if mark in _environment(pid)]


@contextmanager
def torchrun(
    nodes: Nodes, names: Sequence[str], program: str, *words: str, c10d: bool = False, per_host: int = 1
) -> Iterator[Job]:
    """A job of torchrun, an agent on each host. Without ``c10d`` its agents do not watch each other."""
    with job_of(nodes, f"{program}-torchrun", len(names) * per_host) as job:
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
    with job_of(nodes, f"{program}-by-hand", len(names) * per_host) as job:
        # On a bare host, the programs of the repository are not there.
        for name in (program, "rank"):
            shutil.copy(JOBS / f"{name}.py", job.folder)
        copy = job.folder / f"{program}.py"
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
    with job_of(nodes, f"{program}-mpirun", len(names)) as job:
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
            job.started[0].wait(DEADLINE_SECONDS)


@contextmanager
def under_srun(nodes: Nodes, slurm: Slurm, count: int, program: str, *words: str) -> Iterator[tuple[Job, str]]:
    """A job of srun in a batch job on ``count`` hosts, and the id of the batch job."""
    with job_of(nodes, f"{program}-srun", count) as job:
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
def job_of(nodes: Nodes, name: str, world: int) -> Iterator[Job]:
    folder = nodes.folder / f"{name}-{next(_ports)}"
    folder.mkdir()
    job = Job(folder, nodes, world)
    running.append(job)
    try:
        yield job
    except BaseException:
        evidence.keep(job.seen())
        raise
    finally:
        running.remove(job)
        job.end()


def _variables(job: Job) -> dict[str, str]:
    return {
        "RIG_DIR": str(job.folder),
        "BREAKRANKS_DIR": str(job.folder / "meet"),  # where ranks without torch meet
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }


def _start(job: Job, host: Host, command: Sequence[str], **variables: str) -> None:
    job.start(host, command, {**_variables(job), **variables})


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
