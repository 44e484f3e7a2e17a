"""One host of the rig: to run commands on, to break in many ways, and to see what was left on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from support.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
# Folders that a host has for itself.
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm", "/run")
# What names a place of the machine that a host does not have.
_FOREIGN = {"TMPDIR", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "BREAKRANKS_RUN"}
_LISTENS = "0A"  # in /proc/net/tcp

# A disk that is full takes an empty file, and not a byte. What lies there already stays.
_FILL = r"""
for folder; do
    used=$(df --output=used -k "$folder" | tail -1)
    mount --no-mtab -o "remount,size=$((used + 16))k" "$folder"
    cat /dev/zero >"$folder/.full" 2>/dev/null || true
done
"""
_EMPTY = 'for folder; do rm -f "$folder/.full"; mount --no-mtab -o remount,size=50% "$folder"; done'

_HIDE = r"""
for path; do
    if [ -d "$path" ]; then mount --no-mtab -t tmpfs -o ro,mode=755,size=4k tmpfs "$path"
    elif [ -e "$path" ]; then mount --no-mtab --bind /run/nothing "$path"
    fi
done
"""

# Not by a mount over each: it would still be there, and found. The layer above is the host's own.
_REMOVE = r"""
number=$(find /run -maxdepth 1 -name 'layer*' | wc -l)
folder=$1
shift
mkdir -p "/run/layer$number/upper" "/run/layer$number/work"
mount --no-mtab -t overlay overlay \
    -o "lowerdir=$folder,upperdir=/run/layer$number/upper,workdir=/run/layer$number/work" "$folder"
cd "$folder"
rm -f -- "$@"
"""


class Process(subprocess.Popen[Any]):
    """A process on a host. ``pid`` is of the shell that waits for it; signals go to the process itself.

    End it by ``terminate`` and ``kill``. It also ends when the shell is killed, but then nobody reaps it save
    the init of this machine, and the host cannot end before that.
    """

    @property
    def pid_here(self) -> int:
        """The process id as this machine counts; ProcessLookupError when it has ended."""
        while self.poll() is None:
            try:
                with open(f"/proc/{self.pid}/task/{self.pid}/children") as file:
                    children = file.read().split()
            except FileNotFoundError:
                children = []
            if children:
                return int(children[0])
            time.sleep(0.002)
        raise ProcessLookupError(f"{self.args} has ended")

    @property
    def pid_there(self) -> int:
        """The process id as its host counts."""
        return pid_there(self.pid_here)

    def send_signal(self, sig: int) -> None:
        try:
            os.kill(self.pid_here, sig)
        except ProcessLookupError:
            pass


class Host:
    """One host, once it is up. ``pid`` is of its init, as this machine counts."""

    def __init__(
        self, name: str, address: str, folder: Path, enter: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        self.environment = dict(environment or {})
        self._enter = enter
        self.pid = 0
        self.started: list[Process] = []
        self._hidden: list[Path] = []
        self._full: set[str] = set()
        self._frozen = False

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        **options: Any,
    ) -> Process:
        """Start a process on the host. ``env`` is added to the environment; ``cwd`` is the shared folder."""
        process = Process(
            [
                *("nsenter", f"--target={self.pid}", "--net", "--uts", "--ipc", "--mount", "--pid", "--no-fork", "--"),
                *("/bin/sh", str(self._enter), f"--chdir={cwd or self.folder}", "--", *map(str, command)),
            ],
            env={**inherited(), "HOSTNAME": self.name, **self.environment, **(env or {})},
            stdin=stdin,
            start_new_session=True,
            **options,
        )
        self.started.append(process)
        return process

    def run(
        self,
        command: Sequence[str | Path],
        *,
        timeout: float = 120.0,
        check: bool = False,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host to its end, and keep what it prints as text."""
        with self.popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(list(command), process.returncode, stdout, stderr)
        if check:
            done.check_returncode()
        return done

    # ---- what befalls it

    def fill(self, *folders: str) -> None:
        """Fill the disks of the host: all that it has for itself, or these."""
        self._full |= {*(folders or PRIVATE)}
        self._sh(_FILL, *(folders or PRIVATE))

    def empty(self, *folders: str) -> None:
        self._full -= {*(folders or PRIVATE)}
        self._sh(_EMPTY, *(folders or PRIVATE))

    def hide(self, *paths: Path) -> None:
        """Take folders and files away from the host, from one process to the next. What runs keeps what it has."""
        for path in paths:
            if self.folder.is_relative_to(path):
                raise ValueError(f"{path} holds the folder of the rig, which the hosts need")
        self._sh(_HIDE, *map(str, paths))
        self._hidden += [path for path in paths if path.exists()]

    def show(self) -> None:
        """Give back what was hidden, the last first."""
        hidden, self._hidden = self._hidden[::-1], []
        self._sh('for path; do umount --no-mtab --lazy "$path"; done', *map(str, hidden))

    def hide_breakranks(self) -> None:
        """Take away our code and what it needs. The Python of the job stays, with all else that is in it."""
        paths = {REPOSITORY / "src"}
        for name in ("breakranks", *(re.split(r"[^\w.-]", one)[0] for one in metadata.requires("breakranks") or ())):
            try:
                found = metadata.distribution(name)
            except metadata.PackageNotFoundError:  # of an extra
                continue
            for file in found.files or ():
                paths.add(Path(os.path.normpath(found.locate_file(file if file.parts[0] == ".." else file.parts[0]))))
        self.hide(*paths)

    def hide_our_python(self) -> None:
        """Leave the host what a bare one has: the Python of its system, and nothing that we know."""
        self.hide(*(path for path in (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)) if path != Path("/usr")))

    def remove_pythons(self, instead: Path | None = None) -> None:
        """Leave the host no Python at all, or only ``instead``, as its python3."""
        root = Path.home() / ".pyenv"
        kept = instead.parents[1] if instead else None
        self.hide_our_python()
        self.hide(*(path for path in [root / "shims", *root.glob("versions/*")] if path.is_dir() and path != kept))
        for folder in ("/usr/bin", "/usr/local/bin"):
            if names := [path.name for path in Path(folder).glob("python*")]:
                self._sh(_REMOVE, folder, *names)
        if instead:
            self.run(["ln", "-sf", instead, "/usr/bin/python3"], check=True)

    def mend(self) -> None:
        """Put back what was done to it, as far as it can be: a Python that was removed, and an sshd, stay gone."""
        if self._frozen:
            self.thaw()
        if self._hidden:
            self.show()
        if self._full:
            self.empty(*self._full)

    def freeze(self) -> None:
        """Stop every process of the host. Its kernel still takes connections, and nobody answers them."""
        self._frozen = True
        for pid in self.processes():
            _signal(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        self._frozen = False
        for pid in self.processes():
            _signal(pid, signal.SIGCONT)

    def end_sshd(self) -> None:
        """From now on the host refuses connections. Those that are there stay."""
        for pid, command in self.processes().items():
            if "sshd" in command and "[listener]" in command:
                _signal(pid, signal.SIGKILL)  # a child that has the same name for a moment may be gone
        wait_for("nobody to listen there", lambda: not any(one.endswith(":0016") for one in self.listeners()))

    # ---- what is on it

    def processes(self) -> dict[int, str]:
        """Every process of the host, by its id as this machine counts, and its command line."""
        own = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{name}/ns/pid").st_ino == own:
                    with open(f"/proc/{name}/cmdline", "rb") as file:
                        found[int(name)] = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                pass
        return found

    def listeners(self) -> set[str]:
        """What listens on TCP, as the kernel writes it: address:port, in hexadecimal."""
        found = set()
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{self.pid}/net/{table}") as file:
                rows = [line.split() for line in file.readlines()[1:]]
            found |= {row[1] for row in rows if row[3] == _LISTENS}
        return found

    def files(self) -> set[str]:
        """Every file and folder in what the host has for itself, as its paths there."""
        root = f"/proc/{self.pid}/root"
        found = set()
        for private in PRIVATE:
            device = os.stat(root + private).st_dev
            for folder, names, files in os.walk(root + private):
                here = folder.removeprefix(root)
                found |= {here, *(f"{here}/{name}" for name in (*names, *files))}
                names[:] = [name for name in names if _is_on(device, f"{folder}/{name}")]
        return {path for path in found if not path.startswith("/run/layer")}

    def _sh(self, script: str, *arguments: str) -> None:
        done = self.run(["sh", "-euc", script, "sh", *arguments], cwd=Path("/"))
        if done.returncode:
            raise RuntimeError(f"{self.name}: {done.stderr.strip()}")


def _is_on(device: int, path: str) -> bool:
    try:
        return os.lstat(path).st_dev == device
    except OSError:  # gone meanwhile
        return False


def inherited() -> dict[str, str]:
    """What a process on a host has of our own environment."""
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN}


def pid_there(pid: int) -> int:
    """The id of a process as its host counts."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.findall(r"^NSpid:.*\s(\d+)$", file.read(), re.MULTILINE)[0])


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
