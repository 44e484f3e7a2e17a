"""Real hosts on one machine, n1 to nN, on a switch of their own; the machine itself is their login node.

A host has its own net, UTS, PID, IPC and mount namespaces, and its own /tmp, /var/tmp, /dev/shm, /run and home
(in /run: a login shell's files run there, and not in yours). It shares everything else with the machine: one
folder stands for NFS, and Python and the repository are where they are. What a host can suffer: ``Nodes.cut``,
``cut_between`` and ``crash``, and the methods of ``Host``.

    with Nodes(tmp_path, 4, ssh=True, odd={"n4": Odd(bashrc="echo Welcome")}) as nodes:
        job = nodes["n1"].popen(["torchrun", ...], stdout=log)
        nodes.cut_between("n1", "n2")
        with nodes.more({"n5": Odd(refuses=True)}):
            ...
        nodes.mend()

Nothing outlives the ``with``, nor a run that is killed: no namespace has a name, so each lives only as long
as its processes, and those end when the pipe from the process that made them closes. The machine sees one
network link, and no file of it is changed.

Needs root, and the Debian packages ``iproute2``, ``util-linux`` and ``mount``; for ssh also
``openssh-server`` and ``openssh-client``. Two hosts take a quarter of a second.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .host import REPOSITORY, Host, Process
from .odd_hosts import HOME, Odd

__all__ = ["INTERFACE", "MACHINE", "Host", "Nodes", "Odd", "Process"]

INTERFACE = "eth0"
MACHINE = "machine"
# command: the Debian package that has it
_TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "mount": "mount"}
_SSH_TOOLS = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
_PRIVILEGES = "Hosts need root with all its capabilities; in a container: docker run --privileged"
_NOBODY = "02:00:00:00:00:00"  # no card has this address

# The init of a host. bash, because it reaps the orphans that become its children, also while it reads.
# A private folder is put together on a stage, where what stays visible can still be bound into it.
_INIT = r"""
set -eu
name=$1 address=$2 rig=$3 sshd=$4
shift 4
echo "$name" >/proc/sys/kernel/hostname
for private in /tmp /var/tmp /dev/shm /run; do
    mount -t tmpfs -o mode=1777 tmpfs "$rig/$name"
    for visible in "$@"; do
        case $visible in
        "$private"/*)
            mkdir -p "$rig/$name${visible#"$private"}"
            mount --bind "$visible" "$rig/$name${visible#"$private"}"
            ;;
        esac
    done
    mount --no-mtab --move "$rig/$name" "$private" # its table would be in the old /run
done
chmod 755 /run
mkdir -m 1777 /run/lock
(umask 777 && : >/run/nothing)
# The interfaces under /sys/class/net are those of the net namespace that mounted it.
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --move /run/cgroup /sys/fs/cgroup
rmdir /run/cgroup
echo "$name" >/run/hostname
if [ -e /etc/hostname ]; then mount --bind /run/hostname /etc/hostname; fi
for file in hosts nsswitch.conf passwd shadow ssh/ssh_config; do
    if [ -e "$rig/etc/$file" ]; then mount --bind "$rig/etc/$file" "/etc/$file"; fi
done
cp -R "$rig/$name.home" /run/home
echo mounted
read -r _
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
if [ -n "$sshd" ]; then
    mkdir -m 755 /run/sshd
    # Whatever the machine's user does at every login is none of the hosts': it may take long, or hang.
    if [ -e ~/.bashrc ]; then mount --bind /dev/null ~/.bashrc; fi
    "$sshd" -D -f "$rig/$name.sshd_config" -E "$rig/$name.sshd.log" </dev/null >/dev/null 2>&1 &
fi
echo up
while read -r _; do :; done
"""

# What stands between a Popen and its process on a host. The exit status comes through, and a death by signal
# too. nsenter itself would stop when the process is stopped, and not go on when the process does; a shell
# does not. It says how a command died, but to nobody: in a subshell, for dash redirects before it forks.
# The process leads a session of its own, as by ssh: that of its parent has no number on the host.
_ENTER = r"""
exec 9>&2 2>/dev/null
(exec setpriv --pdeathsig KILL setsid env "$@" 2>&9 9>&-)
status=$?
if [ $status -gt 128 ]; then ulimit -c 0; kill -$((status - 128)) $$; fi
exit $status
"""

_SSHD_CONFIG = """\
Port 22
HostKey {rig}/hostkey
AuthorizedKeysFile {rig}/id.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
PrintLastLog no
AcceptEnv *
MaxStartups 200:30:400
MaxSessions 100
Subsystem sftp internal-sftp
"""

_SSH_CONFIG = """\
Host {name}
  HostName {address}
"""

_SSH_CONFIG_OF_ALL = """\
Host *
  User root
  IdentityFile {rig}/id
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {rig}/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 30
"""


class Nodes:
    """Hosts n1 to n``count``. ``folder`` is on all of them, and so are the folders of ``visible``."""

    def __init__(
        self,
        folder: Path,
        count: int = 2,
        *,
        ssh: bool = False,
        visible: Iterable[Path] = (),
        odd: Mapping[str, Odd] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.count = count
        self.with_ssh = ssh
        self.odd = dict(odd or {})
        self.visible = [
            self.folder,
            REPOSITORY,
            Path(sys.prefix),
            Path(sys.base_prefix),
            *(path.resolve() for path in visible),
        ]
        self.hosts: dict[str, Host] = {}
        self.link = ""
        self.address = ""
        self._network = ""
        self._switch = 0
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        self._cut: set[str] = set()
        self._cut_between: set[tuple[str, str]] = set()
        self._undo = ExitStack()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts.values())

    @property
    def ssh_config(self) -> Path:
        """For ``ssh -F`` on this machine; a host has it as its /etc/ssh/ssh_config."""
        return self._rig / "etc/ssh/ssh_config"

    def cut(self, name: str) -> None:
        """Pull the cable of a host: packets are lost in silence, both ways."""
        self._cut.add(name)
        self._on_switch(f"link set {self[name].name} down")

    def heal(self, name: str) -> None:
        """Put the cable back."""
        self._cut.discard(name)
        self._on_switch(f"link set {self[name].name} up")

    def cut_between(self, one: str, other: str) -> None:
        """Lose in silence what two hosts say to each other, both ways; one of them may be MACHINE.

        Each sends it to a card that nobody has. So it needs no firewall, and the rest of the network lives.
        """
        self._cut_between.add((one, other))
        for here, there in ((one, other), (other, one)):
            self._neighbour(here, f"replace {self._address(there)} lladdr {_NOBODY} nud permanent")

    def heal_between(self, one: str, other: str) -> None:
        self._cut_between -= {(one, other), (other, one)}
        for here, there in ((one, other), (other, one)):
            if here in self._living() | {MACHINE}:
                self._neighbour(here, f"delete {self._address(there)}")

    def crash(self, name: str) -> None:
        """Take the power from a host, for good: no word to anybody, and every process gone."""
        self.cut(name)
        os.kill(self[name].pid, signal.SIGKILL)
        self._inits[name].wait(60)

    def mend(self) -> None:
        """Put back what befell the hosts that are there: cut cables, frozen processes, hidden folders, full disks."""
        for name in self._cut & self._living():
            self.heal(name)
        for one, other in tuple(self._cut_between):
            self.heal_between(one, other)
        for name in self._living():
            self[name].mend()

    def _living(self) -> set[str]:
        return {name for name, init in self._inits.items() if init.poll() is None}

    @contextmanager
    def more(self, odd: Mapping[str, Odd | None]) -> Iterator[None]:
        """Add hosts for a time. They end with it, whatever has become of them; the others know them by name."""
        taken = [name for name in odd if name in self.hosts]
        if taken:
            raise ValueError(f"{', '.join(taken)}: already there")
        try:
            self._add({name: one or Odd() for name, one in odd.items()})
            yield
        finally:
            for one, other in tuple(self._cut_between):
                if one in odd or other in odd:
                    self.heal_between(one, other)
            self._end_hosts(list(odd))
            for name in odd:
                self._forget(name)
            self._write_names()

    def __enter__(self) -> Nodes:
        _demand({**_TOOLS, **(_SSH_TOOLS if self.with_ssh else {})})
        try:
            self._start()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._rig = Path(tempfile.mkdtemp(prefix=".nodes-", dir=self.folder))
        (self._rig / "init").write_text(_INIT)
        (self._rig / "enter").write_text(_ENTER)
        self._start_switch()
        self._network = self._claim_network()
        self.address = f"{self._network}.254"
        self._write_etc()
        if self.with_ssh:
            self._write_ssh()
        self._undo.callback(self._end_hosts)
        names = [f"n{number}" for number in range(1, self.count + 1)]
        self._add({name: self.odd.get(name, Odd()) for name in names})

    def _add(self, odd: Mapping[str, Odd]) -> None:
        added = []
        for name, ways in odd.items():
            address = f"{self._network}.{int(name.removeprefix('n'))}"
            host = Host(name, address, self.folder, self._rig / "enter", ways.environment(self._rig))
            self.hosts[name] = host
            added.append(host)
            ways.write(self._rig, name)
            if self.with_ssh:
                with open(self._rig / f"{name}.sshd_config", "a") as config:
                    config.write(_SSHD_CONFIG.format(rig=self._rig))
        self._write_names()
        for host in added:
            self._start_host(host)
        for host in added:
            init = self._inits[host.name]
            _expect(b"mounted", init, self._rig / f"{host.name}.log")
            host.pid = _only_child(init.pid)
        self._on_switch(
            *(f"link add {host.name} type veth peer {_card(host)} name {INTERFACE} netns {host.pid}" for host in added),
            *(f"link set {host.name} master switch up" for host in added),
        )
        for host in added:
            self._inits[host.name].stdin.write(b"\n")
        for host in added:
            _expect(b"up", self._inits[host.name], self._rig / f"{host.name}.log")
        for host in added:
            self._await_network(host)

    def _forget(self, name: str) -> None:
        """A host that has ended leaves its name free. The kernel is late to clear its end of the cable away."""
        delete = ["nsenter", f"--target={self._switch}", "--net", "--", "ip", "link", "delete", name]
        subprocess.run(delete, capture_output=True, timeout=90)
        self.hosts.pop(name, None)
        self._inits.pop(name, None)
        self._cut.discard(name)
        for path in (*self._rig.glob(f"{name}.*"), self._rig / name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def _start_switch(self) -> None:
        # Not in the machine's namespace: there its firewall would judge what the hosts say to each other.
        script = "ip link add switch type bridge && ip link set switch up && echo up && exec cat"
        log = self._rig / "switch.log"
        switch = _start_init(["unshare", "--net", "--", "/bin/sh", "-c", script], log)
        self._undo.callback(_end, switch)
        _expect(b"up", switch, log)
        self._switch = switch.pid

    def _start_host(self, host: Host) -> None:
        (self._rig / host.name).mkdir()
        sshd = str(_which("sshd")) if self.with_ssh else ""
        spaces = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        arguments = (host.name, host.address, self._rig, sshd, *self.visible)
        command = ["unshare", *spaces, "--", "/bin/bash", str(self._rig / "init"), *map(str, arguments)]
        self._inits[host.name] = _start_init(command, self._rig / f"{host.name}.log")

    def _end_hosts(self, names: Iterable[str] | None = None) -> None:
        hosts = [self[name] for name in (self.hosts if names is None else names) if name in self.hosts]
        inits = [self._inits[host.name] for host in hosts if host.name in self._inits]
        # A host has ended when all its processes are reaped, which a shell that was stopped would not do.
        for host in hosts:
            for process in host.started:
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGCONT)
            if self._inits.get(host.name) and self._inits[host.name].poll() is None and host.pid:
                os.kill(host.pid, signal.SIGCONT)
        # All before any is waited for: hosts end side by side.
        for init in inits:
            init.stdin.close()
        for init in inits:
            _end(init)
        for host in hosts:
            for process in host.started:
                process.wait(60)

    def _claim_network(self) -> str:
        """Take a 10.x.y that nobody has. The link's name is the claim: of two runs, the kernel refuses one."""
        taken = list(_routes())
        for _ in range(1000):
            network = f"10.{random.randrange(256)}.{random.randrange(256)}"
            if any(ipaddress.ip_network(f"{network}.0/24").overlaps(other) for other in taken):
                continue
            link = "rig" + network.removeprefix("10.").replace(".", "-")
            add = ["ip", "link", "add", link, "type", "veth", "peer", "name", "machine", "netns", str(self._switch)]
            done = subprocess.run(add, capture_output=True, text=True, timeout=90)
            if done.returncode == 0:
                break
            if "File exists" not in done.stderr:
                raise RuntimeError(f"no network link: {done.stderr.strip()}. {_PRIVILEGES}")
        else:
            raise RuntimeError("no 10.x.y.0/24 is free on this machine; see `ip route`")
        self.link = link
        # By name, although it would go with the switch: the kernel is late to clear a namespace away.
        self._undo.callback(subprocess.run, ["ip", "link", "delete", link], capture_output=True, timeout=90)
        self._on_switch("link set machine master switch up")
        _ip(f"address add {network}.254/24 dev {link}", f"link set {link} up")
        return network

    def _write_etc(self) -> None:
        etc = self._rig / "etc"
        etc.mkdir()
        (etc / "hosts").touch()
        passwd = Path("/etc/passwd").read_text()
        (etc / "passwd").write_text(re.sub(r"(?m)^(root:(?:[^:]*:){4})[^:]*", rf"\g<1>{HOME}", passwd))
        if os.path.exists("/etc/nsswitch.conf"):
            text = Path("/etc/nsswitch.conf").read_text()
            (etc / "nsswitch.conf").write_text(re.sub(r"(?m)^hosts:.*", "hosts: files", text))

    def _write_ssh(self) -> None:
        rig = self._rig
        for key in ("hostkey", "id"):
            keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", str(rig / key)]
            subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL, timeout=90)
        (rig / "known_hosts").write_text("* " + (rig / "hostkey.pub").read_text())
        (rig / "etc/ssh").mkdir()
        self.ssh_config.touch()
        # sshd without PAM refuses an account whose password is locked with "!", as root's often is.
        (rig / "etc/shadow").write_text("root:*:19000:0:99999:7:::\n")

    def _write_names(self) -> None:
        """Into the files that are there already: hosts have them mounted."""
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{self.address} {MACHINE}"]
        lines += [f"{host.address} {host.name}" for host in self]
        (self._rig / "etc/hosts").write_text("\n".join(lines) + "\n")
        if self.with_ssh:
            hosts = (_SSH_CONFIG.format(name=host.name, address=host.address) for host in self)
            self.ssh_config.write_text("".join(hosts) + _SSH_CONFIG_OF_ALL.format(rig=self._rig))

    def _await_network(self, host: Host) -> None:
        """Wait for an answer from port 22: of sshd, or, where there is none, of the kernel that refuses."""
        end = time.monotonic() + 90
        while time.monotonic() < end:
            try:
                socket.create_connection((host.address, 22), timeout=0.5).close()
                return
            except ConnectionRefusedError:
                if not self.with_ssh:
                    return
            except OSError:
                pass
            time.sleep(0.01)
        what = f"sshd: see {self._rig}/{host.name}.sshd.log" if self.with_ssh else "does a firewall forbid it?"
        raise RuntimeError(f"{host.name} at {host.address} does not answer from here. {what}")

    def _address(self, name: str) -> str:
        return self.address if name == MACHINE else self[name].address

    def _neighbour(self, name: str, words: str) -> None:
        if name == MACHINE:
            _ip(f"neighbour {words} dev {self.link}")
        else:
            prefix = ("nsenter", f"--target={self[name].pid}", "--net", "--")
            _ip(f"neighbour {words} dev {INTERFACE}", prefix=prefix)

    def _on_switch(self, *commands: str) -> None:
        _ip(*commands, prefix=("nsenter", f"--target={self._switch}", "--net", "--"))


def _demand(tools: Mapping[str, str]) -> None:
    if os.geteuid() != 0:
        raise RuntimeError(f"not root. {_PRIVILEGES}")
    missing = [tool for tool in tools if _which(tool) is None]
    if missing:
        packages = sorted({tools[tool] for tool in missing})
        raise RuntimeError(f"not here: {', '.join(missing)}; install: apt-get install {' '.join(packages)}")


def _which(tool: str) -> str | None:
    return shutil.which(tool) or shutil.which(tool, path="/usr/local/sbin:/usr/sbin:/sbin")


def _ip(*commands: str, prefix: Sequence[str] = ()) -> None:
    batch = "".join(command + "\n" for command in commands)
    done = subprocess.run([*prefix, "ip", "-batch", "-"], input=batch, capture_output=True, text=True, timeout=90)
    if done.returncode:
        raise RuntimeError(f"ip: {done.stderr.strip()}, of:\n{batch}{_PRIVILEGES}")


def _routes() -> Iterator[ipaddress.IPv4Network]:
    """Networks that this machine reaches, save those so wide that nothing would be left."""
    done = subprocess.run(["ip", "-j", "-4", "route", "show", "table", "all"], capture_output=True, timeout=90)
    for route in json.loads(done.stdout or "[]"):
        if route["dst"] != "default":
            network = ipaddress.IPv4Network(route["dst"], strict=False)
            if network.prefixlen > 8:
                yield network


def _card(host: Host) -> str:
    """A host that comes again under the same name has the same card: the others may know it still."""
    return f"address 02:00:00:00:00:{int(host.name.removeprefix('n')):02x}"


def _start_init(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start what keeps namespaces alive until its input closes, which it does also when we are killed."""
    with open(log, "wb") as errors:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )


def _expect(word: bytes, process: subprocess.Popen[bytes], log: Path) -> None:
    ready, _, _ = select.select([process.stdout], [], [], 90)
    if not ready or process.stdout.readline().strip() != word:
        raise RuntimeError(f"{log.stem} did not come to be {word.decode()}: {log.read_text().strip()}\n{_PRIVILEGES}")


def _only_child(pid: int) -> int:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        (child,) = file.read().split()
    return int(child)


def _end(init: subprocess.Popen[bytes]) -> None:
    """End a host: with the first process of a PID namespace, the kernel ends all others."""
    init.stdin.close()
    try:
        init.wait(60)
    except subprocess.TimeoutExpired:
        init.kill()
        init.wait(60)
    init.stdout.close()
