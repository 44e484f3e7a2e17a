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

from support.processes import alive
from support.waiting import DEADLINE_SECONDS, free_port, wait_for

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
        self._count = 0  # of its nodes

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
        self._count = len(nodes)
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
                controller_port=free_port(),
                node_port=free_port(),
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
        self._await_idle()

    def _await_idle(self) -> None:
        def idle() -> bool:
            return self._run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self._count)

        wait_for("every node of Slurm is idle", idle)

    def clear(self) -> None:
        """End every job, and wait until all nodes are there again."""
        for job in self._run("squeue", "-h", "-o", "%A").split():
            self.cancel(job)
        self._await_idle()

    def seen(self) -> str:
        """The end of what its daemons have said."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"-- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in logs)

    def _nodes(self) -> dict[str, str]:
        return {host.name: host.address for host in self.hosts} if self.hosts else {_machine(): "127.0.0.1"}

    def submit(self, script: str, *options: str) -> str:
        """Hand in a batch script, and wait until it runs: the job's id."""
        path = self.folder / f"script{len(os.listdir(self.folder))}"
        path.write_text("#!/bin/bash\n" + script)
        log = f"--output={path}.log"
        job = self._run("sbatch", "--parsable", log, f"--chdir={self.folder}", *options, str(path)).strip()
        wait_for(f"Slurm's job {job} runs; see {path}.log", lambda: self._state(job) == "RUNNING")
        return job

    def _state(self, job: str) -> str:
        """Nothing: it has ended. A question mark: not to be had now."""
        done = self._call("squeue", "-h", "-j", job, "-o", "%T")
        return "?" if done.returncode and "Invalid job id" not in done.stderr else done.stdout.strip()

    def cancel(self, job: str) -> None:
        """End a job, and wait until it has."""
        self._run("scancel", "--full", "--signal=KILL", job)
        self._run("scancel", job)
        wait_for(f"Slurm's job {job} has ended; see {self.folder}/*.log", lambda: not self._state(job))

    def _call(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**inherited(), **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def _run(self, *command: str) -> str:
        done = self._call(*command)
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
    """End a daemon, which is nobody's child: where nobody reaps it, it stays a zombie."""
    for number, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, DEADLINE_SECONDS)):
        until = time.monotonic() + seconds
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        while alive(pid) and time.monotonic() < until:
            time.sleep(0.02)
