"""A real Slurm on this machine: munged, slurmctld and one slurmd, started and stopped by pid.

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

_CONFIG = """\
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
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
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldTimeout=30
SlurmdTimeout=20
KillWait=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """One running Slurm. ``environment`` is what ``srun`` needs to find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

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
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        os.chmod(folder, 0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(
            _CONFIG.format(
                host=socket.gethostname().split(".")[0],
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
        self._run("slurmd", "-f", self.environment["SLURM_CONF"])
        end = time.monotonic() + 30
        while self._run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != "1":
            if time.monotonic() > end:
                raise RuntimeError(f"Slurm's node did not come up; see {folder}/*.log")
            time.sleep(0.1)

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
        if done.returncode and command[0] != "sinfo":
            raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def __exit__(self, *_: object) -> None:
        for name in ("slurmd", "slurmctld", "munged"):
            try:
                pid = int((self.folder / f"{name}.pid").read_text())
            except (OSError, ValueError):
                continue
            _end(pid)


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
