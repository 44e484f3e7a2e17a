"""The rig of hosts is what it says: hosts apart from each other, on a network, and gone afterwards."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import alive
from support.waiting import wait_for

from .nodes import INTERFACE, Host, Nodes, Odd
from .transports import ssh

PYTHON = sys.executable
NAMESPACES = ("net", "uts", "ipc", "mnt", "pid")

LISTEN = """
import socket
with socket.create_server(("", 7000)) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].close()
"""

CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])).close()
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from cluster.nodes import Nodes
with Nodes(Path(sys.argv[1]), ssh=True) as nodes:
    process = nodes["n1"].popen(["sleep", "1000"])
    print(nodes.link, process.pid_here, process.pid, *(host.pid for host in nodes), nodes._switch, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def below_tmp() -> Iterator[Path]:
    """A folder directly below /tmp, wherever pytest has its own."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def adopts_orphans() -> Iterator[None]:
    """For a time, orphans become our children: the init of a container often leaves them zombies."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    assert prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    yield
    prctl(set_child_subreaper, 0, 0, 0, 0)


def connects(source: Host, to: str, timeout: float = 60.0) -> bool:
    return source.run([PYTHON, "-c", CONNECT, to, str(timeout)]).returncode == 0


def namespaces(pids: list[int]) -> set[str]:
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids for kind in NAMESPACES}


def members(spaces: set[str]) -> set[int]:
    """Every process that is in one of these namespaces."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if namespaces([int(name)]) & spaces:
                    found.add(int(name))
            except OSError:
                pass
    return found


def links() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def test_hosts_are_apart_and_share_one_folder(nodes: Nodes) -> None:
    n1, n2 = nodes["n1"], nodes["n2"]

    assert [host.run(["hostname"]).stdout for host in nodes] == ["n1\n", "n2\n", "n3\n"]
    assert not namespaces([n1.pid]) & namespaces([n2.pid])
    assert not namespaces([n1.pid]) & namespaces([os.getpid()])
    for private in ("/tmp", "/dev/shm", "/run"):
        path = f"{private}/{nodes.link}"
        n1.run(["touch", path], check=True)
        assert n1.run(["test", "-e", path]).returncode == 0
        assert n2.run(["test", "-e", path]).returncode == 1
        assert not os.path.exists(path)
    n1.run(["sh", "-c", "hostname > shared"], check=True)
    assert n2.run(["cat", nodes.folder / "shared"]).stdout == "n1\n"
    assert (nodes.folder / "shared").read_text() == "n1\n"
    assert n1.run(["ls", "/sys/class/net"]).stdout.split() == [INTERFACE, "lo"]


def test_what_lies_below_tmp_stays_visible(below_tmp: Path) -> None:
    repository = Path(__file__).resolve().parents[2]
    (below_tmp / "repository").mkdir()
    (below_tmp / "repository/file").write_text("here")
    (below_tmp / "other").touch()

    with Nodes(below_tmp / "folder", 1, visible=[below_tmp / "repository"]) as nodes:
        n1 = nodes["n1"]
        assert n1.run(["ls", below_tmp]).stdout.split() == ["folder", "repository"]
        assert n1.run(["cat", below_tmp / "repository/file"]).stdout == "here"
        assert n1.run(["pwd"]).stdout.strip() == str(below_tmp / "folder")
        assert n1.run(["ls", repository / "pyproject.toml"]).returncode == 0
        assert n1.run([PYTHON, "-c", "import breakranks"]).returncode == 0


def test_a_cut_cuts_and_healing_heals(nodes: Nodes) -> None:
    with nodes["n2"].popen([PYTHON, "-c", LISTEN], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "listening\n"

        assert connects(nodes["n1"], "n2")
        assert connects(nodes["n1"], nodes["n2"].address)
        nodes.cut("n2")
        assert not connects(nodes["n1"], "n2", timeout=1)
        assert connects(nodes["n2"], "n2")
        nodes.heal("n2")
        assert connects(nodes["n1"], "n2")
        server.kill()


def test_a_process_ends_as_its_popen_says(nodes: Nodes) -> None:
    n1 = nodes["n1"]

    assert n1.run(["sh", "-c", "echo out; echo err >&2; exit 3"]).returncode == 3
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = n1.popen(["sleep", "1000"], stderr=subprocess.PIPE)
        here, there = process.pid_here, process.pid_there
        assert n1.run(["cat", f"/proc/{there}/comm"]).stdout
        process.send_signal(number)
        assert process.communicate(timeout=60) == (None, b"")
        assert process.returncode == -number
        assert not os.path.exists(f"/proc/{here}")


def test_a_process_ends_with_the_shell_that_waits_for_it(nodes: Nodes, adopts_orphans: None) -> None:
    process = nodes["n1"].popen(["sh", "-c", "echo ready; exec sleep 1000"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    here = process.pid_here
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)

    wait_for("its end", lambda: not alive(here))
    _, status = os.waitpid(here, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_orphans_are_reaped(nodes: Nodes) -> None:
    orphan = int(nodes["n1"].run(["sh", "-c", "sleep 0.1 >/dev/null 2>&1 & echo $!"]).stdout)
    wait_for("its end", lambda: nodes["n1"].run(["test", "-e", f"/proc/{orphan}"]).returncode == 1)


def test_a_stopped_process_goes_on(nodes: Nodes) -> None:
    process = nodes["n1"].popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.send_signal(signal.SIGSTOP)
    os.kill(process.pid_here, signal.SIGCONT)

    assert process.communicate(b"on", timeout=60) == (b"on", None)
    assert process.returncode == 0


def test_a_command_that_takes_too_long_is_ended(nodes: Nodes) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        nodes["n1"].run(["sleep", "1000"], timeout=0.2)
    assert "sleep" not in nodes["n1"].run(["ps", "-e"]).stdout


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with Nodes(tmp_path, ssh=True) as nodes:
        # One that would not end when asked, one that is nobody's child, one that is stopped, as is its shell.
        stubborn = nodes["n1"].popen(["sh", "-c", "trap '' TERM; sleep 1000"])
        nodes["n2"].run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], check=True)
        stopped = nodes["n2"].popen(["sleep", "1000"])
        stopped.send_signal(signal.SIGSTOP)
        os.kill(stopped.pid, signal.SIGSTOP)
        spaces = namespaces([host.pid for host in nodes]) - namespaces([os.getpid()])
        assert len(spaces) == 2 * len(NAMESPACES)
        # Namespaces have no name, so they go with their processes. Their numbers are used again at once.
        started = {stubborn.pid, stubborn.pid_here, stopped.pid, stopped.pid_here}  # which waits for them
        pids = members(spaces) | {nodes._switch, *(init.pid for init in nodes._inits.values())}
        assert started < pids
        assert nodes.link in links()

    assert (stubborn.returncode, stopped.returncode) == (-9, -9)
    assert not any(map(alive, pids))
    assert nodes.link not in links()
    with open("/proc/self/mountinfo") as file:
        assert str(tmp_path) not in file.read()


def test_nothing_is_left_behind_by_a_start_that_fails(tmp_path: Path, below_tmp: Path) -> None:
    nodes = Nodes(tmp_path, visible=[below_tmp / "missing"])
    with pytest.raises(RuntimeError, match=r"missing.*does not exist"), nodes:
        pass
    assert nodes.link and nodes.link not in links()
    assert not os.path.exists(f"/proc/{nodes._switch}")
    assert all(init.returncode is not None for init in nodes._inits.values())


def test_nothing_is_left_behind_by_a_run_that_is_killed(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [PYTHON, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
    )
    out, _ = program.communicate(timeout=90)
    assert program.returncode == -signal.SIGKILL
    link, *pids = out.split()
    assert len(pids) == 5
    wait_for("the end of the rig", lambda: link not in links() and not any(alive(int(pid)) for pid in pids))


def test_two_rigs_at_once(nodes: Nodes, tmp_path: Path) -> None:
    with Nodes(tmp_path, 1) as other:
        assert other.link != nodes.link
        assert other["n1"].run(["hostname"]).stdout == nodes["n1"].run(["hostname"]).stdout
        assert not connects(other["n1"], nodes["n2"].address, timeout=1)


def test_a_missing_tool_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: None if tool == "sshd" else f"/usr/bin/{tool}")
    with pytest.raises(RuntimeError, match=r"sshd.*apt-get install openssh-server"), Nodes(tmp_path, ssh=True):
        pass


def test_without_root_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RuntimeError, match=r"need root"), Nodes(tmp_path):
        pass


def test_ssh_from_outside_and_between_hosts(nodes: Nodes) -> None:
    outside = ssh(nodes, "n3", "hostname")
    assert (outside.stdout, outside.stderr, outside.returncode) == ("n3\n", "", 0)
    inside = nodes["n1"].run(["ssh", "n3", "hostname; exit 7"], timeout=90)
    assert (inside.stdout, inside.stderr, inside.returncode) == ("n3\n", "", 7)


def test_hosts_that_are_added_for_a_time(nodes: Nodes) -> None:
    before = set(links()), [host.name for host in nodes]
    with nodes.more({"n11": None, "n12": Odd(bashrc="echo Welcome\n")}):
        pids = [nodes[name].pid for name in ("n11", "n12")]
        assert ssh(nodes, "n12", "hostname").stdout == "Welcome\nn12\n"
        assert nodes["n1"].run(["ssh", "n11", "hostname"], timeout=90).stdout == "n11\n"
        assert nodes["n11"].run(["ssh", "n1", "hostname"], timeout=90).stdout == "n1\n"
        nodes.cut_between("n1", "n11")
        nodes.crash("n12")
    assert not any(map(alive, pids))
    assert before == (set(links()), [host.name for host in nodes])
    with nodes.more({"n11": None, "n12": None}):  # the names are free again, and nothing is cut
        assert ssh(nodes, "n11", "ssh n1 hostname").stdout == "n1\n"
        assert ssh(nodes, "n12", "hostname").stdout == "n12\n"


def test_what_befell_a_host_is_put_back(nodes: Nodes) -> None:
    repository = Path(__file__).resolve().parents[2]
    n3 = nodes["n3"]
    n3.hide_breakranks()
    n3.fill("/tmp", "/dev/shm")
    n3.freeze()
    nodes.cut("n3")
    nodes.cut_between("n1", "n2")
    nodes.mend()
    assert n3.run([PYTHON, "-c", "import breakranks, msgspec"]).returncode == 0
    assert n3.run(["ls", repository / "src/breakranks"]).returncode == 0
    assert n3.run(["sh", "-c", "echo x >/tmp/x && echo x >/dev/shm/x && rm /tmp/x /dev/shm/x"]).returncode == 0
    assert nodes["n1"].run(["ssh", "n3", "hostname"], timeout=90).stdout == "n3\n"
    assert nodes["n1"].run(["ssh", "n2", "hostname"], timeout=90).stdout == "Welcome to n2\nn2\n"
