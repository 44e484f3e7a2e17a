"""Hosts of the rig break in the ways that hosts do, and only in those."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import wait_for

from .host import REPOSITORY
from .nodes import MACHINE, Nodes, Odd
from .odd_hosts import HOME
from .transports import ssh

BANNER = "Property of the University.\n"
BASHRC = 'echo "Welcome to $(hostname)"; printf "You have mail. "\n'
LISTEN = """
import socket, sys
with socket.create_server(("", 7000)), open("/dev/shm/new", "w"):
    print("listening", flush=True)
    sys.stdin.read()
"""
AHEAD = 5000
SOON = "-oConnectTimeout=1"


@pytest.fixture(scope="module")
def nodes(nodes: Nodes) -> Iterator[Nodes]:
    """Those that a test harms for good are this module's own."""
    odd = {"n9": Odd(banner=BANNER, bashrc=BASHRC), "n10": Odd(clock=AHEAD), "n4": Odd(refuses=True)}
    with nodes.more(odd | dict.fromkeys(("n5", "n6", "n7", "n8"))):
        yield nodes


def pythons(nodes: Nodes, name: str) -> list[str]:
    """Every Python that a person finds on a host, and its version."""
    pyenv = Path.home() / ".pyenv"
    script = f'for p in /usr/bin/python* /usr/local/bin/python* {pyenv}/versions/*/bin/python3; do "$p" -V; done'
    return ssh(nodes, name, script).stdout.split("\n")[:-1]


def test_hosts_without_oddities_are_quiet_and_right_in_time(nodes: Nodes) -> None:
    began = time.time()
    done = ssh(nodes, "n1", "date +%s; echo $HOME")
    now, home = done.stdout.split()
    assert began - 1 <= int(now) <= time.time() + 1
    assert home == HOME
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_login_shell_that_prints(nodes: Nodes) -> None:
    done = ssh(nodes, "n9", "echo here; echo $HOME")
    assert done.stdout == "Welcome to n9\nYou have mail. here\n/run/home\n"
    assert BANNER in done.stderr


def test_a_clock_that_is_ahead(nodes: Nodes) -> None:
    program = "import time, datetime; print(int(time.time()), int(datetime.datetime.now().timestamp()))"
    began = time.time()
    seen = [*ssh(nodes, "n10", "date +%s").stdout.split(), *ssh(nodes, "n10", f"python3 -c '{program}'").stdout.split()]
    seen += nodes["n10"].run(["date", "+%s"]).stdout.split()
    assert len(seen) == 4
    assert all(began - 1 <= int(one) - AHEAD <= time.time() + 1 for one in seen)
    began = time.monotonic()
    counted = ssh(nodes, "n10", "python3 -c 'import time; print(int(time.monotonic()))'").stdout
    assert began - 1 <= int(counted) <= time.monotonic() + 1


def test_a_host_that_lets_nobody_in(nodes: Nodes) -> None:
    done = ssh(nodes, "n4", "true")
    assert done.returncode == 255
    assert "Permission denied" in done.stderr


def test_a_full_disk(nodes: Nodes) -> None:
    host = nodes["n1"]
    host.fill()
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
        done = ssh(nodes, "n1", f"echo x > {folder}/x; echo x > {nodes.folder}/shared")
        assert "No space left on device" in done.stderr, folder
        assert done.stderr.count("\n") == 1
    host.empty()
    assert not ssh(nodes, "n1", "echo x > /tmp/x && echo x > /run/x && rm /tmp/x /run/x").stderr


def test_a_partial_cut_leaves_the_rest(nodes: Nodes) -> None:
    nodes.cut_between("n5", "n6")
    for one, other in (("n5", "n6"), ("n6", "n5")):
        assert ssh(nodes, one, f"ssh {SOON} {other} true").returncode == 255
        assert ssh(nodes, one, "ssh n1 hostname").stdout == "n1\n"
    nodes.heal_between("n5", "n6")
    assert ssh(nodes, "n5", "ssh n6 hostname").stdout == "n6\n"


def test_what_is_sent_over_a_partial_cut_waits_and_arrives_when_it_heals(nodes: Nodes) -> None:
    with nodes["n5"].popen(["ssh", "n6", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        cat.stdin.write(b"one\n")
        cat.stdin.flush()
        assert cat.stdout.readline() == b"one\n"
        nodes.cut_between("n5", "n6")
        cat.stdin.write(b"two\n")
        cat.stdin.flush()
        wait_for("it is sent again", lambda: unanswered(nodes, "n5", nodes["n6"].address) > 1)
        assert cat.poll() is None
        nodes.heal_between("n5", "n6")
        assert cat.stdout.readline() == b"two\n"
        cat.stdin.close()
        assert cat.wait(60) == 0


def test_a_host_that_the_machine_reaches_over_another_one_only(nodes: Nodes) -> None:
    nodes.cut_between(MACHINE, "n6")
    try:
        assert ssh(nodes, SOON, "n6", "true").returncode == 255
        over = ssh(nodes, f"-oProxyCommand=ssh -F {nodes.ssh_config} -W %h:%p n5", "n6", "hostname")
        assert over.stdout == "n6\n", over.stderr
    finally:
        nodes.heal_between(MACHINE, "n6")
    assert ssh(nodes, "n6", "hostname").stdout == "n6\n"


def test_a_frozen_host_takes_connections_and_does_not_answer(nodes: Nodes) -> None:
    nodes["n5"].freeze()
    try:
        with socket.create_connection((nodes["n5"].address, 22), timeout=60) as link:
            link.settimeout(1)
            with pytest.raises(TimeoutError):
                link.recv(1)
    finally:
        nodes["n5"].thaw()
    assert ssh(nodes, "n5", "hostname").stdout == "n5\n"


def test_a_bare_host_has_only_the_python_of_its_system(nodes: Nodes) -> None:
    nodes["n7"].hide_our_python()
    for path in (REPOSITORY / "src", REPOSITORY / ".venv/bin", REPOSITORY / "pyproject.toml"):
        assert ssh(nodes, "n7", f"ls {path}").returncode == 2
    assert ssh(nodes, "n7", "python3 -c 'import breakranks'").returncode == 1
    assert ssh(nodes, "n7", "python3 -c 'import json'").returncode == 0
    assert (REPOSITORY / "pyproject.toml").exists()
    assert ssh(nodes, "n1", f"ls {REPOSITORY}/pyproject.toml").returncode == 0


def test_a_host_without_breakranks_has_the_rest_of_its_python(nodes: Nodes) -> None:
    assert ssh(nodes, "n5", f"{shlex.quote(sys.executable)} -c 'import breakranks, msgspec'").returncode == 0
    nodes["n5"].hide_breakranks()
    for module in ("breakranks", "msgspec", "pystack", "rich"):
        assert "No module named" in ssh(nodes, "n5", f"{shlex.quote(sys.executable)} -c 'import {module}.x'").stderr, (
            module
        )
    assert ssh(nodes, "n5", f"{shlex.quote(sys.executable)} -c 'import pytest, numpy'").returncode == 0
    assert ssh(nodes, "n5", f"{shlex.quote(str(Path(sys.executable).parent))}/py-spy --version").returncode == 126
    assert (REPOSITORY / "src/breakranks/__init__.py").exists()


def test_a_host_without_python_and_one_with_an_old_one(nodes: Nodes) -> None:
    nodes["n8"].remove_pythons()
    assert pythons(nodes, "n8") == []
    assert ssh(nodes, "n8", "python3 -V").returncode == 127
    assert shutil.which("python3", path="/usr/bin")
    old = sorted(Path.home().glob(".pyenv/versions/3.6.*/bin/python3.6"))
    if old:
        nodes["n7"].remove_pythons(instead=old[0])
        assert {line[:10] for line in pythons(nodes, "n7")} == {"Python 3.6"}
        assert ssh(nodes, "n7", "/usr/bin/python3 -c 'print(1)'").stdout == "1\n"


def test_the_folder_of_the_rig_cannot_be_hidden(nodes: Nodes) -> None:
    with pytest.raises(ValueError, match="holds the folder"):
        nodes["n5"].hide(nodes.folder.parent)


def test_refusing_and_crashing(nodes: Nodes) -> None:
    nodes["n5"].end_sshd()
    refused = ssh(nodes, "n5", "true")
    assert (refused.returncode, "refused" in refused.stderr) == (255, True)
    processes = nodes["n6"].processes()
    assert any("sshd" in command for command in processes.values())
    nodes.crash("n6")
    gone = ssh(nodes, SOON, "n6", "true")
    assert (gone.returncode, "refused" in gone.stderr) == (255, False)
    wait_for("its processes to have gone", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in processes))


def test_what_is_on_a_host(nodes: Nodes) -> None:
    before = (nodes["n9"].processes(), nodes["n9"].listeners(), nodes["n9"].files())
    assert {one.rpartition(":")[2] for one in before[1]} == {"0016"}
    with nodes["n9"].popen(
        ["python3", "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        (new,) = nodes["n9"].processes().keys() - before[0].keys()
        assert new == process.pid_here
        assert {one.rpartition(":")[2] for one in nodes["n9"].listeners() - before[1]} == {f"{7000:04X}"}
        assert nodes["n9"].files() - before[2] == {"/dev/shm/new"}
        process.stdin.close()
    nodes["n9"].run(["rm", "/dev/shm/new"], check=True)
    assert (nodes["n9"].processes(), nodes["n9"].listeners(), nodes["n9"].files()) == before


def unanswered(nodes: Nodes, name: str, address: str) -> int:
    """How often a host has sent the same again to an address, with no answer."""
    wanted = socket.inet_aton(address)[::-1].hex().upper()
    with open(f"/proc/{nodes[name].pid}/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return max((int(row[6], 16) for row in rows if row[2].startswith(wanted)), default=0)
