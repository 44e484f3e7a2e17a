"""Containers of podman on a host of the rig: a rank in each, as pid 1.

Nothing has to be pulled. The root of a container is an overlay over a few empty folders, with the machine's own /usr.
They end with their host. Needs the Debian package ``podman``.

    with Containers(nodes["n1"]) as containers:
        containers.start("box1", ["/usr/bin/python3", "train.py"], {"RANK": "0"}, nodes.folder)
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from .host import Host
from .transports import demand

# In /run, which is the host's own. crun refuses a machine that has both versions of cgroups; a host needs only one.
_PREPARE = r"""
mkdir -p /run/root/etc /run/root/proc /run/root/sys /run/root/dev /run/root/run /run/root/usr /run/tmp
chmod 1777 /run/tmp
for name in bin lib lib64 sbin; do
    if [ -L "/$name" ]; then cp -P "/$name" /run/root/; elif [ -d "/$name" ]; then mkdir "/run/root/$name"; fi
done
cp /etc/passwd /etc/group /run/root/etc/
if mountpoint -q /sys/fs/cgroup/unified; then umount --no-mtab /sys/fs/cgroup/unified; fi
"""
_PODMAN = """\
#!/bin/sh
exec podman --root /run/store --runroot /run/podman --cgroup-manager cgroupfs --events-backend file "$@"
"""
# Limits that a root without all its capabilities may set, too.
_RUN = ("run", "--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--network=host")


class Containers:
    """``podman`` is a command of the host. All containers share one /tmp, and each counts its processes from 1."""

    def __init__(self, host: Host) -> None:
        demand("podman", "podman")
        self.host = host
        self.podman = host.folder / "podman"
        self.podman.write_text(_PODMAN)
        self.podman.chmod(0o755)
        host.run(["sh", "-euc", _PREPARE], check=True)
        tried = self._run("--rm", (), ["/bin/true"])
        if tried.returncode:
            pytest.skip(f"podman cannot run a container here: {tried.stderr.strip()}")

    def start(self, name: str, command: Sequence[str], variables: Mapping[str, str], folder: Path) -> int:
        """Start a container that has the folder; the id of its first process, as the host counts.

        podman takes a name for the beginning of a container's id, too: a name of hexadecimal digits may be another one.
        """
        words = [f"--name={name}", f"--hostname={name}", f"--volume={folder}:{folder}"]
        words += [f"--env={key}={value}" for key, value in variables.items()]
        started = self._run("--detach", words, command)
        assert started.returncode == 0, started
        return int(self.call("inspect", "--format={{.State.Pid}}", name).stdout)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run podman on the host."""
        return self.host.run([self.podman, *words], check=True)

    def _run(self, how: str, words: Sequence[str], command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        volumes = ["--volume=/usr:/usr:ro", "--volume=/run/tmp:/tmp"]
        for name in ("bin", "lib", "lib64", "sbin"):
            if Path("/", name).is_dir() and not Path("/", name).is_symlink():
                volumes.append(f"--volume=/{name}:/{name}:ro")
        return self.host.run([self.podman, *_RUN, how, *words, *volumes, "--rootfs", "/run/root:O", *command])
