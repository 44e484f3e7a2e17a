"""A real Slurm: munged, slurmctld, and a slurmd here or on every host of a rig. Started and stopped by pid.

Needs the Debian packages ``slurm-wlm`` and ``munge``, and root. Takes a quarter of a second.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from .host import inherited
from .nodes import Nodes, Process

_CONFIG = """\
ClusterName=rig
SlurmctldHost={host}({address})
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldTimeout=120
SlurmdTimeout=120
KillWait=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Slurm:
    """One running Slurm. ``environment`` is what ``srun`` needs to find it.

    With ``hosts``, a slurmd runs on each of them, and jobs go there; the machine is the login node.
    """

    def __init__(self, folder: Path, hosts: Nodes | None = None) -> None:
        self.folder = folder
        self.hosts = hosts
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._slurmds: list[Process] = []

    def __enter__(self) -> Slurm:
        for tool in ("munged", "slurmctld", "slurmd", "srun"):
            if shutil.which(tool) is None:
                raise RuntimeError(f"{tool} is not here; install it: apt-get install slurm-wlm munge")
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        folder = self.folder
        nodes = self._nodes()
        for name in ("state", *(f"spool.{node}" for node in nodes)):
            (folder / name).mkdir(parents=True)
        os.chmod(folder, 0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(
            _CONFIG.format(
                host=_machine(),
                address=self.hosts.address if self.hosts else "127.0.0.1",
                nodes="\n".join(f"NodeName={one} NodeAddr={at} CPUs=8 State=UNKNOWN" for one, at in nodes.items()),
                folder=folder,
                controller_port=_free_port(),
                node_port=_free_port(),
            )
        )
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        self._run(
            "munged",
            "--force",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munged.seed",
        )
        self._run("slurmctld", "-c", "-f", self.environment["SLURM_CONF"])
        if self.hosts:
            for host in self.hosts:
                self._slurmds.append(host.popen(["slurmd", "-D", "-f", self.environment["SLURM_CONF"]], **_QUIET))
        else:
            self._run("slurmd", "-f", self.environment["SLURM_CONF"])
        end = time.monotonic() + 90
        while self._run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != str(len(nodes)):
            if time.monotonic() > end:
                raise RuntimeError(f"Slurm's nodes did not come up; see {folder}/*.log")
            time.sleep(0.1)

    def _nodes(self) -> dict[str, str]:
        return {host.name: host.address for host in self.hosts} if self.hosts else {_machine(): "127.0.0.1"}

    def submit(self, script: str, *options: str) -> str:
        """Hand in a batch script, and wait until it runs: the job's id."""
        path = self.folder / f"script{len(os.listdir(self.folder))}"
        path.write_text("#!/bin/bash\n" + script)
        log = f"--output={path}.log"
        job = self._run("sbatch", "--parsable", log, f"--chdir={self.folder}", *options, str(path)).strip()
        end = time.monotonic() + 90
        while (state := self._run("squeue", "-h", "-j", job, "-o", "%T").strip()) != "RUNNING":
            if time.monotonic() > end:
                raise RuntimeError(f"Slurm's job {job} does not run but is {state!r}; see {path}.log")
            time.sleep(0.05)
        return job

    def cancel(self, job: str) -> None:
        """End a job, and wait until it has."""
        self._run("scancel", "--full", "--signal=KILL", job)
        self._run("scancel", job)
        end = time.monotonic() + 90
        while self._run("squeue", "-h", "-j", job, "-o", "%T").strip():
            if time.monotonic() > end:
                raise RuntimeError(f"Slurm's job {job} does not end; see {self.folder}/*.log")
            time.sleep(0.05)

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            env={**inherited(), **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        if done.returncode and command[0] not in ("sinfo", "scancel", "squeue"):
            raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def __exit__(self, *_: object) -> None:
        steps = self._steps()
        for slurmd in self._slurmds:
            slurmd.kill()
            slurmd.wait(60)
        for name in (f"slurmd.{_machine()}", "slurmctld", "munged"):
            try:
                pid = int((self.folder / f"{name}.pid").read_text())
            except (OSError, ValueError):
                continue
            _end(pid)
        for pid in [task for step in steps for task in _children(step)] + steps:
            try:
                os.kill(pid, signal.SIGKILL)  # a step does not heed anything else
            except ProcessLookupError:
                continue

    def _steps(self) -> list[int]:
        """What runs the steps of jobs that a test left behind when it failed: it would outlive the daemons."""
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if words.startswith(b"slurmstepd") and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(int(pid))
            except OSError:
                continue
        return found


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _machine() -> str:
    return socket.gethostname().split(".")[0]


def _end(pid: int) -> None:
    end = time.monotonic() + 10
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
            while time.monotonic() < end:
                os.kill(pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
