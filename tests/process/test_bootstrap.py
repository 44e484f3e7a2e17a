"""The remote command, run through real shells: it finds a Python, receives missing code, and removes it."""

from __future__ import annotations

import fcntl
import glob
import importlib.machinery
import importlib.util
import json
import os
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import breakranks
from breakranks.errors import UsageError
from breakranks.hosts.bootstrap import bundle, install
from breakranks.hosts.bootstrap.shell_command import remote_command
from breakranks.hosts.framing import FramedMessage, FrameReader, FrameWriter
from breakranks.hosts.host_message_checks import report_of
from breakranks.hosts.host_messages import ClockReply, FindJobs, Hello, JobsFound, Report, encode
from breakranks.observe.pyspy_run import py_spy
from support.processes import Processes
from support.waiting import DEADLINE_SECONDS as DEADLINE
from support.waiting import wait_for

NONCE = "0123456789abcdef"
HOST = os.uname().nodename
AS_ROOT = os.geteuid() == 0
OLD = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/[23].[6-9]*/bin/python")))
FULL = "mount -t tmpfs -o size=64k,mode=1777 none {0} && dd if=/dev/zero of={0}/full bs=4k 2>/dev/null"
needs_mounts = pytest.mark.skipif(not AS_ROOT or not shutil.which("unshare"), reason="only root can mount")


class Remote:
    """One run of the command, as a login shell of a host would run it."""

    def __init__(
        self,
        words: tuple[str, ...],
        *,
        shell: tuple[str, ...] = ("sh", "-c"),
        environ: dict[str, str] | None = None,
        cwd: Path | None = None,
        **more: Any,
    ) -> None:
        self.reader, self.writer = FrameReader(NONCE), FrameWriter(NONCE, 48_000)
        self.messages: list[FramedMessage] = []
        self.raw = b""
        self.processes = Processes()
        self.process = self.processes.start(
            [*shell, shlex.join(words)],
            {"PYTHONPATH": "", **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            **more,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.inp, self.out = self.process.stdin.fileno(), self.process.stdout.fileno()

    def next(self) -> FramedMessage:
        end = time.monotonic() + DEADLINE
        while not self.messages:
            assert select.select([self.out], [], [], max(0, end - time.monotonic()))[0], "it says nothing"
            data = os.read(self.out, 1 << 16)
            if not data:
                raise EOFError(f"it has ended: {self.errors()}")
            self.raw += data
            self.messages += self.reader.feed(data)
        return self.messages.pop(0)

    def stage(self) -> dict[str, Any]:
        said = self.next()
        assert said.kind == b"j", said
        assert said.who == HOST
        found: dict[str, Any] = json.loads(said.body)
        return found

    def report(self) -> Report:
        """Return the next report that is not a sign of life."""
        while True:
            said = self.next()
            assert said.kind == b"m", said
            found = report_of(said.body)
            if not isinstance(found, ClockReply):
                return found

    def hello(self) -> Hello:
        found = self.report()
        assert isinstance(found, Hello)
        return found

    def send(self, body: bytes, who: str = HOST) -> None:
        left = memoryview(self.writer.lines(who, body[:1], body[1:]))
        while left:
            left = left[os.write(self.inp, left) :]

    def supply(self, need: dict[str, Any], **more: Any) -> None:
        for body in bundle.supply(need, **more):
            self.send(body)

    def ask(self, request: Any) -> Report:
        self.send(b"m" + encode(request))
        return self.report()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(DEADLINE)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode(errors="replace")

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        try:
            self.process.wait(DEADLINE)
        finally:
            self.processes.end()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture(autouse=True)
def as_it_is_now() -> None:
    """The sources may be edited while tests run."""
    bundle.digest.cache_clear()


@pytest.fixture
def remotes() -> Iterator[list[Remote]]:
    made: list[Remote] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of the same version without breakranks."""
    place = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    return str(place / "bin" / "python")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder for the code that is sent."""
    made = tmp_path / "tmp"
    made.mkdir(mode=0o700)
    return made


def go_to(place: Path) -> dict[str, str]:
    return {"TMPDIR": str(place), "XDG_RUNTIME_DIR": "", "PATH": "/usr/bin:/bin"}


def folders(place: Path) -> list[str]:
    return [name for name in os.listdir(place) if name.startswith("breakranks-")]


SHELLS = ["sh", "bash", "dash", "busybox sh", "zsh", "tcsh", "fish"]


@pytest.mark.parametrize("shell", SHELLS)
def test_passes_through_the_login_shell(shell: str, remotes: list[Remote]) -> None:
    """GIVEN breakranks on the host WHEN its login shell runs the command THEN the agent starts without sent code."""
    if not shutil.which(shell.split()[0]):
        pytest.skip(f"{shell} is not installed")
    remote = Remote(remote_command(NONCE), shell=(*shell.split(), "-c"))
    remotes.append(remote)
    hello = remote.hello()
    assert not hello.shipped
    assert hello.python == ".".join(map(str, sys.version_info[:3]))
    # What anybody prints there goes to the errors, and what anybody reads is nothing.
    assert os.stat(f"/proc/{hello.pid}/fd/1") == os.stat(f"/proc/{hello.pid}/fd/2") != os.fstat(remote.out)
    assert os.readlink(f"/proc/{hello.pid}/fd/0") == os.devnull
    assert remote.end() == 0


def test_no_word_has_anything_that_a_shell_takes_for_something_else() -> None:
    for more in ({}, {"setup": "conda activate x", "sudo": True}, {"setup": "echo 'a' \\\n \"b\"! %h"}):
        words = remote_command(NONCE, **more)  # type: ignore[arg-type]
        assert words[:2] == ("sh", "-c")
        assert not set("\n'\\!%") & set("".join(words))
        assert len(shlex.join(words)) < 32_000
    with pytest.raises(ValueError, match="nonce"):
        remote_command("$(reboot)")
    with pytest.raises(UsageError):
        remote_command(NONCE, python="py'thon")


def test_ships_what_is_lacking_and_leaves_nothing(bare: str, place: Path, remotes: list[Remote]) -> None:
    """GIVEN a bare Python WHEN all code is sent THEN it is private, works, and is removed with the agent."""
    remote = Remote(remote_command(NONCE, python=bare), environ=go_to(place))
    remotes.append(remote)
    need = remote.stage()
    assert need["stage"] == "need"
    assert need["have"] == []
    assert folders(place) == []
    remote.supply(need)
    assert remote.hello().shipped
    (name,) = folders(place)
    folder = place / name
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert b"py-spy" in subprocess.run([folder / "bin" / "py-spy", "--version"], check=True, capture_output=True).stdout
    # What it starts itself finds the same: here, as the worker for native stacks does.
    script = "import breakranks.observe.native_frames as found; print(found.__file__)"
    if importlib.util.find_spec("pystack"):  # it has no wheel for every Python
        script = f"import pystack.engine; {script}"
    done = subprocess.run(
        [bare, "-c", script], env={"PYTHONPATH": str(folder / "lib")}, check=True, capture_output=True
    )
    assert done.stdout.decode().startswith(str(folder))
    assert isinstance(remote.ask(FindJobs(1)), JobsFound)
    numbers = [int(line.split()[3]) for line in remote.raw.splitlines() if line.split()[4] == b"."]
    assert numbers == list(range(len(numbers)))  # the agent counts on
    assert remote.end() == 0
    wait_for("the folder is removed", lambda: not folders(place))


def test_an_agent_needs_no_extension_module(bare: str, place: Path, remotes: list[Remote]) -> None:
    """GIVEN a bare Python that nothing compiled here fits WHEN the package is sent THEN its agent finds jobs."""
    remote = Remote(remote_command(NONCE, python=bare), environ=go_to(place))
    remotes.append(remote)
    need = remote.stage()
    remote.supply({**need, "suffix": ".of-another-python.so"})
    assert remote.hello().shipped
    (name,) = folders(place)
    assert os.listdir(place / name / "lib") == ["breakranks"]
    assert isinstance(remote.ask(FindJobs(1)), JobsFound)
    assert remote.end() == 0
    wait_for("the folder is removed", lambda: not folders(place))


def test_another_breakranks_is_not_used(bare: str, place: Path, tmp_path: Path, remotes: list[Remote]) -> None:
    """GIVEN a host that imports an older one as it starts WHEN this one is sent THEN this one runs."""
    old = tmp_path / "old"
    (old / "breakranks").mkdir(parents=True)
    (old / "breakranks" / "__init__.py").write_text("__version__ = '0.0.1'\n")
    (old / "sitecustomize.py").write_text("import breakranks\n")
    remote = Remote(remote_command(NONCE, python=bare), environ={**go_to(place), "PYTHONPATH": str(old)})
    remotes.append(remote)
    need = remote.stage()
    assert need["stage"] == "need"
    remote.supply(need, tools=())
    assert remote.hello().version == breakranks.__version__
    assert isinstance(remote.ask(FindJobs(1)), JobsFound)


def test_killed_agents_are_cleaned_up_after(bare: str, place: Path, remotes: list[Remote]) -> None:
    """GIVEN an agent whose code was sent WHEN it is killed with -9 THEN its folder is removed."""
    remote = Remote(remote_command(NONCE, python=bare), environ=go_to(place))
    remotes.append(remote)
    remote.supply(remote.stage(), tools=())
    pid = remote.hello().pid
    assert len(folders(place)) == 1
    os.kill(pid, signal.SIGKILL)
    wait_for("the folder is removed", lambda: not folders(place))


def test_nothing_of_it_is_taken_for_a_rank(bare: str, place: Path, remotes: list[Remote]) -> None:
    """GIVEN an agent that was started by srun, and its cleanup process WHEN it looks for jobs THEN neither is one."""
    job = {
        "SLURM_JOB_ID": "771177",
        "SLURM_STEP_ID": "3",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_LOCALID": "0",
    }
    remote = Remote(remote_command(NONCE, python=bare), environ={**go_to(place), **job, "SLURM_NODEID": "0"})
    remotes.append(remote)
    remote.supply(remote.stage(), tools=())
    remote.hello()
    found = remote.ask(FindJobs(1))
    assert isinstance(found, JobsFound)
    assert "771177" not in repr(found)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_input_that_ends_too_early_leaves_nothing(share: float, bare: str, place: Path, remotes: list[Remote]) -> None:
    remote = Remote(remote_command(NONCE, python=bare), environ=go_to(place))
    remotes.append(remote)
    bodies = list(bundle.supply(remote.stage(), tools=()))
    lines = b"".join(remote.writer.lines(HOST, body[:1], body[1:]) for body in bodies)
    left = memoryview(lines)[: int(len(lines) * share)]
    while left:
        left = left[os.write(remote.inp, left) :]
    assert remote.end() == 0
    assert remote.errors() == ""
    assert folders(place) == []


def test_what_came_damaged_is_refused(bare: str, place: Path, remotes: list[Remote]) -> None:
    remote = Remote(remote_command(NONCE, python=bare), environ=go_to(place))
    remotes.append(remote)
    for body in bundle.supply(remote.stage(), tools=()):
        if body[:1] == b"z":
            plain = bytearray(zlib.decompress(body[1:]))
            plain[len(plain) // 2] ^= 1
            body = b"z" + zlib.compress(bytes(plain), 1)
        remote.send(body)
    failed = remote.stage()
    assert failed["stage"] == "failed"
    assert "checksum" in failed["what"]
    assert remote.process.wait(DEADLINE) == 1
    assert folders(place) == []


def test_what_is_said_to_other_hosts_is_not_heard(bare: str, place: Path, remotes: list[Remote]) -> None:
    """GIVEN a transport of many hosts WHEN another host is told to go first THEN this one waits for its own message."""
    remote = Remote(remote_command(NONCE, python=bare, piece=600), environ=go_to(place))
    remotes.append(remote)
    need = remote.stage()
    remote.send(b'j{"stage":"go","sha256":{}}', who="another")
    os.write(remote.inp, b"Last login: today\n@br1 ffffffffffffffff * 0 . aaaa\n")
    *files, go = bundle.supply(need, tools=())
    for body in files:
        remote.send(body, who="*")
    both = remote.writer.lines("*", go[:1], go[1:]) + remote.writer.lines(HOST, b"m", encode(FindJobs(1)))
    assert os.write(remote.inp, both) == len(both) < select.PIPE_BUF
    assert remote.hello().shipped
    assert isinstance(remote.report(), JobsFound)  # what came right behind was not lost


def test_nobody_says_anything(bare: str, place: Path, remotes: list[Remote]) -> None:
    remote = Remote(remote_command(NONCE, python=bare, patience=0.2), environ=go_to(place))
    remotes.append(remote)
    remote.stage()
    assert remote.process.wait(DEADLINE) == 0
    assert folders(place) == []


def test_nothing_is_imported_from_where_it_starts(tmp_path: Path, remotes: list[Remote]) -> None:
    trap = "raise SystemExit('imported from the wrong place')"
    for name in ("zlib", "binascii", "json", "base64", "typing", "breakranks", "dataclasses", "os", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(trap)
    # An empty entry is the folder where it starts.
    where = f":{os.path.dirname(os.path.dirname(bundle.__file__))}/../.."
    remote = Remote(remote_command(NONCE), cwd=tmp_path, environ={"PYTHONPATH": where})
    remotes.append(remote)
    assert not remote.hello().shipped


# ---- which Python


def test_a_host_without_python_says_so(remotes: list[Remote]) -> None:
    remote = Remote(remote_command(NONCE, candidates=("no-such-python", "/no/such/python3")))
    remotes.append(remote)
    assert remote.stage() == {"stage": "no-python", "found": []}
    assert remote.process.wait(DEADLINE) == 3


def test_what_only_looks_like_python_is_passed_over(tmp_path: Path, remotes: list[Remote]) -> None:
    """GIVEN a shim without a Python, a folder, and a file that is not a program THEN the next candidate is used."""
    shim = tmp_path / "python3"
    shim.write_text("#!/bin/sh\necho no version is set >&2\nexit 127\n")
    shim.chmod(0o755)
    (tmp_path / "broken").write_bytes(b"\x7fELF")
    (tmp_path / "broken").chmod(0o755)
    candidates = (str(shim), str(tmp_path), str(tmp_path / "broken"), sys.executable)
    remote = Remote(remote_command(NONCE, candidates=candidates))
    remotes.append(remote)
    assert not remote.hello().shipped


@pytest.mark.skipif(not OLD, reason="there is no old Python here (pyenv)")
@pytest.mark.parametrize("old", OLD)
def test_an_old_python_finds_a_newer_one(old: str, remotes: list[Remote]) -> None:
    remote = Remote(remote_command(NONCE, candidates=(old, "/no/such", sys.executable)))
    remotes.append(remote)
    assert remote.hello().python == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.skipif(not OLD, reason="there is no old Python here (pyenv)")
def test_only_old_pythons_are_named(remotes: list[Remote]) -> None:
    remote = Remote(remote_command(NONCE, candidates=(*OLD, "no-such-python")))
    remotes.append(remote)
    said = remote.stage()
    assert said["stage"] == "no-python"
    assert [os.path.dirname(one.split()[0]) for one in said["found"]] == [os.path.dirname(one) for one in OLD]
    assert all(one.split()[1][:2] in ("2.", "3.") for one in said["found"])
    assert remote.process.wait(DEADLINE) == 3


def test_home_may_be_part_of_its_name(tmp_path: Path, remotes: list[Remote]) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "py").symlink_to(os.path.realpath(sys.executable))
    for name in ("~/bin/py", "bin/py"):
        remote = Remote(remote_command(NONCE, python=name), environ={"HOME": str(tmp_path)}, cwd=tmp_path)
        remotes.append(remote)
        assert remote.stage()["stage"] == "need"


# ---- set-up and sudo


def test_set_up_comes_first_and_keeps_off_our_lines(bare: str, tmp_path: Path, remotes: list[Remote]) -> None:
    """GIVEN a profile and a set-up that print and read WHEN they run THEN they change neither input nor output."""
    (tmp_path / ".bash_profile").write_text("echo welcome; cat; printf 'no newline'\n")
    setup = f'cat; echo "it\'s set" up!; export PATH={os.path.dirname(bare)}:$PATH\nfalse || true'
    remote = Remote(remote_command(NONCE, setup=setup), environ={"HOME": str(tmp_path), **go_to(tmp_path)})
    remotes.append(remote)
    need = remote.stage()
    assert need["python"] == ".".join(map(str, sys.version_info[:3]))
    assert b"welcome" in remote.reader.strays
    remote.supply(need, tools=())
    assert remote.hello().shipped
    assert remote.end() == 0
    assert "it's set up!" in remote.errors()


@pytest.mark.parametrize("setup", ["false", "exit 0", "no-such-command-here", "conda activate nothing", "if"])
def test_a_set_up_that_fails_is_told(setup: str, remotes: list[Remote], tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "CONDA_EXE": "", "PATH": "/usr/bin:/bin"}
    remote = Remote(remote_command(NONCE, setup=setup), environ=environ)
    remotes.append(remote)
    said = remote.stage()
    assert said["stage"] == "failed"
    assert setup in said["what"]


@pytest.mark.parametrize("tool", ["conda", "mamba"])
def test_conda_is_found_where_it_usually_is(tool: str, bare: str, tmp_path: Path, remotes: list[Remote]) -> None:
    """The conda here is a few lines of shell that take the two words which matter, as the real one does."""
    conda = tmp_path / "miniforge3" / "bin" / "conda"
    conda.parent.mkdir(parents=True)
    hook = f'conda() {{ test "$1 $2" = "activate my env" && PATH={os.path.dirname(bare)}:$PATH; }}'
    conda.write_text(f"#!/bin/sh\ntest \"$1 $2\" = 'shell.bash hook' && cat <<'E'\n{hook}\nE\n")
    conda.chmod(0o755)
    environ = {"HOME": str(tmp_path), "CONDA_EXE": "", "PATH": "/usr/bin:/bin"}
    remote = Remote(remote_command(NONCE, setup=f'{tool} activate "my env"'), environ=environ)
    remotes.append(remote)
    assert remote.stage()["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.skipif(not AS_ROOT or not shutil.which("sudo"), reason="needs root, and sudo to be installed")
def test_sudo_is_asked_for_without_a_password(remotes: list[Remote], tmp_path: Path) -> None:
    remote = Remote(remote_command(NONCE, sudo=True))
    remotes.append(remote)
    assert remote.hello().user == "root"
    # Somebody who may not.
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("there is no Python that everybody can run")
    refused = Remote(
        remote_command(NONCE, sudo=True, python="/usr/bin/python3"), user=65534, group=65534, cwd=Path("/")
    )
    remotes.append(refused)
    said = refused.stage()
    assert said["stage"] == "failed"
    assert "sudo" in said["what"]
    assert refused.process.wait(DEADLINE) == 1


# ---- disks


def mounted(script: str, python: str) -> tuple[str, ...]:
    """The command in a mount namespace of its own, in which ``script`` has run; the Python is at /mnt then."""
    words = remote_command(NONCE, python="/mnt/bin/python")
    bind = f"mount --bind {os.path.dirname(os.path.dirname(python))} /mnt"
    return ("unshare", "-m", "sh", "-c", f'{{ {bind} && {script}; }} >&2; exec "$@"', "sh", *words)


EVERYWHERE = ("/tmp", "/var/tmp", "/dev/shm")


@needs_mounts
def test_a_full_disk_is_passed_over(bare: str, remotes: list[Remote]) -> None:
    """GIVEN /tmp and /var/tmp full to the last byte WHEN code is sent THEN all of it goes to /dev/shm."""
    script = "; ".join(FULL.format(where) for where in EVERYWHERE[:2]) + "; mount -t tmpfs -o mode=1777 none /dev/shm"
    remote = Remote(mounted(script, bare), environ={"TMPDIR": "", "XDG_RUNTIME_DIR": "", "PATH": "/usr/bin:/bin"})
    remotes.append(remote)
    remote.supply(remote.stage())
    hello = remote.hello()
    assert hello.shipped
    (name,) = [one for one in os.listdir(f"/proc/{hello.pid}/root/dev/shm") if one.startswith("breakranks-")]
    assert os.path.exists(f"/proc/{hello.pid}/root/dev/shm/{name}/bin/py-spy")
    assert isinstance(remote.ask(FindJobs(1)), JobsFound)


@needs_mounts
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_nothing_can_be_written_at_all(how: str, bare: str, remotes: list[Remote]) -> None:
    """GIVEN a host where nothing can be written WHEN code is sent THEN the agent runs from memory."""
    one = FULL if how == "full" else "mount -t tmpfs -o ro none {0}"
    script = "; ".join(one.format(where) for where in EVERYWHERE)
    environ = {"TMPDIR": "", "XDG_RUNTIME_DIR": "", "HOME": "/dev/shm", "PATH": "/usr/bin:/bin"}
    remote = Remote(mounted(script, bare), environ=environ)
    remotes.append(remote)
    remote.supply(remote.stage())
    assert not remote.hello().shipped
    assert isinstance(remote.ask(FindJobs(1)), JobsFound)
    assert remote.end() == 0


@needs_mounts
def test_where_nothing_may_be_executed(bare: str, remotes: list[Remote]) -> None:
    """GIVEN only noexec places WHEN code is sent THEN only sources are written, and the agent runs."""
    script = "; ".join(f"mount -t tmpfs -o noexec,mode=1777 none {where}" for where in EVERYWHERE)
    environ = {"TMPDIR": "", "XDG_RUNTIME_DIR": "", "HOME": "/dev/shm", "PATH": "/usr/bin:/bin"}
    remote = Remote(mounted(script, bare), environ=environ)
    remotes.append(remote)
    remote.supply(remote.stage())
    hello = remote.hello()
    assert hello.shipped
    (name,) = [one for one in os.listdir(f"/proc/{hello.pid}/root/tmp") if one.startswith("breakranks-")]
    assert not os.listdir(f"/proc/{hello.pid}/root/tmp/{name}/bin")
    assert isinstance(remote.ask(FindJobs(1)), JobsFound)


# ---- what others left


def left_over(place: Path, name: str, *, alive: bool = True) -> Path:
    folder = place / name
    folder.mkdir(mode=0o700)
    (folder / "lib").mkdir()
    (folder / "lib" / "x.py").write_text("")
    if alive:
        (folder / "alive").touch()
    return folder


def test_sweeps_what_dead_ones_left(place: Path) -> None:
    begin = install.beginning(HOST)
    dead = left_over(place, f"{begin}1")
    used = left_over(place, f"{begin}2")
    new = left_over(place, f"{begin}3", alive=False)
    old = left_over(place, f"{begin}4", alive=False)
    os.utime(old, (1, 1))
    elsewhere = left_over(place, f"breakranks-{os.geteuid()}-another-host-5")
    run = left_over(place, f"breakranks-{os.geteuid()}")
    with open(used / "alive", "rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install.sweep(str(place), HOST)
    assert [one.exists() for one in (dead, old)] == [False] * 2
    assert [one.exists() for one in (used, new, elsewhere, run)] == [True] * 4


def test_sweeping_follows_no_link(place: Path, tmp_path: Path) -> None:
    victim = left_over(tmp_path, "victim")
    begin = install.beginning(HOST)
    (place / f"{begin}1").symlink_to(victim)
    inner = left_over(place, f"{begin}2")
    (inner / "link").symlink_to(victim)
    by_lock = left_over(place, f"{begin}3", alive=False)
    (by_lock / "alive").symlink_to(victim / "alive")
    install.sweep(str(place), HOST)
    assert (victim / "lib" / "x.py").exists()
    assert (place / f"{begin}1").is_symlink()
    assert not inner.exists()
    assert by_lock.exists()


@pytest.mark.skipif(not AS_ROOT, reason="only root can make a folder that is another user's")
def test_what_another_user_made_is_left_alone(place: Path) -> None:
    theirs = left_over(place, f"{install.beginning(HOST)}1")
    os.chown(theirs, 65534, 65534)
    install.sweep(str(place), HOST)
    assert theirs.exists()
    assert not install.is_safe(str(theirs))


def test_a_place_where_others_can_exchange_folders_is_not_used(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert not install.is_safe(str(open_to_all))
    open_to_all.chmod(0o1777)
    assert install.is_safe(str(open_to_all))


# ---- what is sent


def test_digest_tells_one_state_of_the_package_from_another(tmp_path: Path) -> None:
    from breakranks.hosts.bootstrap.stage1 import digest_of

    root = os.path.dirname(os.path.dirname(os.path.dirname(bundle.__file__)))
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert digest_of(str(copy)) == bundle.digest()
    (copy / "rankset.py").write_text("x")
    assert digest_of(str(copy)) != bundle.digest()


def test_slimmed_programs_still_run(tmp_path: Path) -> None:
    whole = Path(py_spy()).read_bytes()
    slim = bundle.slim(whole)
    assert len(zlib.compress(slim, 1)) < len(zlib.compress(whole, 1))
    program = tmp_path / "py-spy"
    program.write_bytes(slim)
    program.chmod(0o700)
    assert b"py-spy" in subprocess.run([program, "--version"], check=True, capture_output=True).stdout
    assert bundle.slim(b"no program") == b"no program"


def test_only_what_fits_and_lacks_is_sent() -> None:
    def names(**need: Any) -> set[str]:
        last = list(bundle.supply(need))[-1]
        return set(json.loads(last[1:])["sha256"])

    fits = {"suffix": importlib.machinery.EXTENSION_SUFFIXES[0], "machine": os.uname().machine}
    ours = {"pystack.zip"} if importlib.util.find_spec("pystack") else set()
    assert names(**fits, have=[]) == {"breakranks.zip", "py-spy"} | ours
    assert names(**fits, have=["pystack", "py-spy"]) == {"breakranks.zip"}
    assert names(**{**fits, "suffix": ".so"}, have=[]) == {"breakranks.zip", "py-spy"}
    assert names(**{**fits, "machine": "vax"}, have=[]) == {"breakranks.zip"}
