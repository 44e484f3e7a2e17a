"""Node sets, command lines and causes: what reaching hosts works out before anything is started."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.errors import BreakranksError, UsageError
from breakranks.hosts.transports import HostPlan, Transport, TransportOptions, diagnose, plan
from breakranks.hosts.transports.mpi import parse_hostfile, read_hostfile
from breakranks.hosts.transports.node_sets import hosts_of, plain
from breakranks.hosts.transports.slurm import NodeState, grouped
from breakranks.hosts.transports.ssh import ssh_arguments, user_options
from breakranks.jobs.targets import Hosts

HOSTILE = [
    "-oProxyCommand=id",
    "-",
    "n1;id",
    "$(id)",
    "`id`",
    "n1 n2",
    "n1|id",
    "n1>x",
    "a'b",
    'a"b',
    "n\\1",
    "../x",
    "a/b",
    "@",
    "me@",
    "me@-x",
    "-x@n1",
    "a@b@c",
    "n%h",
    "nöde",
    "n{1..3}",
    "~root",
    "x" * 256,
    "n1,-oProxyCommand=id",
    "n[1-2],$(id)",
]


def remote(piece: int) -> tuple[str, ...]:
    return ("sh", "-c", f"echo '%h' \"$1\" {piece}", "breakranks", "a  *")


def made(scheme: str, where: str, template: str = "", **options: object) -> HostPlan:
    return plan(Hosts(scheme, where, template), TransportOptions(**options), remote)  # type: ignore[arg-type]


# --- node sets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n2,n1,n2", ["n1", "n2"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[09-11]", ["n09", "n10", "n11"]),
        ("node-[5,8]", ["node-5", "node-8"]),
        ("n[1-7/3]-ib", ["n1-ib", "n4-ib", "n7-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("x1[9-10]", ["x19", "x110"]),
        ("ann@n[1-2],n3", ["ann@n1", "ann@n2", "n3"]),
        ("::1,fe80::1", ["::1", "fe80::1"]),
        ("n1.cluster.example", ["n1.cluster.example"]),
        ("n[1-5]!n3", ["n1", "n2", "n4", "n5"]),
        ("n[1-99999]&n7", ["n7"]),
        ("n[1-50000]!n[1-49999]", ["n50000"]),
    ],
)
def test_node_sets(text: str, expected: list[str]) -> None:
    if "!" in text or "&" in text:
        pytest.importorskip("ClusterShell")
    assert list(hosts_of(text, "ssh")) == expected


RANGES = st.one_of(
    st.integers(0, 12).map(str),
    st.builds("{}-{}".format, st.integers(0, 12), st.integers(0, 12)),
    st.builds("{:02}-{:02}".format, st.integers(0, 12), st.integers(0, 12)),
    st.builds("{}-{}/{}".format, st.integers(0, 5), st.integers(5, 12), st.integers(0, 4)),
    st.sampled_from(["", "a", "01-3", "1-010", "-", "1-", "007", "1 - 2"]),
)
BRACKETS = st.lists(RANGES, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
ELEMENTS = st.lists(
    st.one_of(st.sampled_from(["n", "r", "-", "x1", ".", "me@", ":", "[", "]", "é", " "]), BRACKETS), max_size=4
).map("".join)


@given(st.lists(ELEMENTS, min_size=1, max_size=3).map(",".join))
def test_what_we_work_out_ourselves_is_what_clustershell_says(text: str) -> None:
    nodeset = pytest.importorskip("ClusterShell.NodeSet")
    ours = plain(text)
    # ClusterShell 1.10 takes a digit before a bracket as part of the range: its x1[9-10] is x19 to x110, all of them.
    if ours is not None and not re.search(r"[0-9]\[", text):
        assert sorted(set(ours)) == sorted(nodeset.NodeSet(text))


def test_plain_sets_do_not_import_clustershell() -> None:
    source = (
        "import sys; from breakranks.hosts.transports.node_sets import hosts_of; hosts_of('me@n[1-4,07-09],x', 'ssh');"
        "sys.exit('ClusterShell' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", source], timeout=60).returncode == 0


def test_without_clustershell_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "ClusterShell.py").write_text("raise ImportError('none here')")
    source = "from breakranks.hosts.transports.node_sets import hosts_of; hosts_of('@rack1', 'ssh')"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "UsageError: '@rack1' needs ClusterShell, which is not installed" in done.stderr


def test_groups_are_clustershells(tmp_path: Path) -> None:
    pytest.importorskip("ClusterShell")
    (tmp_path / "groups.conf").write_text("[Main]\ndefault: local\n[local]\nmap: [ $GROUP = rack1 ] && echo n[3-5]\n")
    source = "from breakranks.hosts.transports.node_sets import hosts_of; print(*hosts_of('@rack1!n4,n[1-1]', 'ssh'))"
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["n1", "n3", "n5"], done.stderr


@pytest.mark.parametrize(
    "text", ["", " ", "n[", "n]", "n[]", "n[3-1]", "n[a-b]", "n1,,n2", ",", "n[1-2][3-4]", *HOSTILE]
)
def test_bad_node_sets_are_answered_with_examples(text: str) -> None:
    for scheme in ("ssh", "pdsh", "exec"):
        if scheme == "pdsh" and not text.strip():
            continue
        with pytest.raises(UsageError) as caught:
            made(scheme, text, "echo")
        assert "n[1-4,7]" in caught.value.help or "ClusterShell" in caught.value.message
        assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "text",
    [
        "n[1-999999999]",
        "n[1-100001]",
        "n[1-1000]r[1-1000]",
        "n[0-99999999999999999999999]",
        "n[1-50000],m[1-50001]",
        "n[1-999999999]!n[2-999999999]",
        "n[1-999999999/2]",
        ",".join(f"r[1-9]n{number}[1-999]" for number in range(20)),
        "n[ 1 - 999999999 ]",
    ],
)
def test_a_set_that_nobody_has_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(UsageError) as caught:
        hosts_of(text, "ssh")
    assert "more than 100,000 hosts" in caught.value.message
    assert time.process_time() - began < 10.0


@pytest.mark.parametrize(
    "text", ["n1," * 40_000, "[" * 100_000, "n[1" * 30_000, "," * 100_000, "@" * 100_000, "n1" * 50_000]
)
def test_long_garbage_is_no_work(text: str) -> None:
    began = time.process_time()
    try:
        hosts_of(text, "ssh")
    except UsageError:
        pass
    assert time.process_time() - began < 15  # 0.7 s on two slow cores


@given(st.text(alphabet="n1-2[],@!&^/ .:%é\n", max_size=30))
def test_any_text_is_host_names_or_an_error_of_ours(text: str) -> None:
    try:
        names = hosts_of(text, "ssh")
    except BreakranksError as error:
        assert error.help
        return
    assert names and all(re.fullmatch(r"[A-Za-z0-9_.:@-]+", name) and name[0] not in "-@" for name in names)


# --- ssh ---------------------------------------------------------------------------------------------


def test_ssh_has_one_process_a_host_and_nothing_reaches_a_shell_unquoted() -> None:
    made_plan = made("ssh", "me@n[1-2]", deadline=20.0)
    assert made_plan.hosts == ("me@n1", "me@n2")
    first = made_plan.transports[0]
    assert (first.hosts, first.piece) == (("me@n1",), 48_000)
    assert first.argv[0] == "ssh" and "-oBatchMode=yes" in first.argv and "-oConnectTimeout=16" in first.argv
    assert first.argv[-3:-1] == ("--", "me@n1")
    assert tuple(shlex.split(first.argv[-1])) == remote(48_000)


def test_what_the_user_says_to_ssh_wins_save_for_what_we_must_have(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("")
    words = ssh_arguments(
        TransportOptions(ssh_config=str(config), ssh_options="-p 2222 -oConnectTimeout=3 -oBatchMode=no")
    )
    assert words.index("-oBatchMode=yes") < words.index("-oBatchMode=no")
    assert words.index("-oConnectTimeout=3") < words.index("-oConnectTimeout=8")
    assert words[words.index("-F") + 1] == str(config)
    with pytest.raises(UsageError, match="cannot be read"):
        ssh_arguments(TransportOptions(ssh_config=str(tmp_path / "none")))


@pytest.mark.parametrize("text", ["-p 2222", "-4qi key", "-i 'my key' -o 'User ann'", "-Jgate", "", "-vvv"])
def test_options_for_ssh(text: str) -> None:
    assert list(user_options(text)) == shlex.split(text)


@pytest.mark.parametrize(
    "text", ["n9", "-p", "-4 n9", "-p 22 n9", "--", "-", "-N", "-4f", "-tt", "'x", "-W n1:22", "-i k -n"]
)
def test_words_that_are_no_options_do_not_become_a_host(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        user_options(text)
    assert "--ssh-options" in caught.value.message and "-p 2222" in caught.value.help


# --- exec --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("echo exec -i {host} --", ("echo", "exec", "-i", "c1", "--", *remote(48_000))),
        ("echo exec -i", ("echo", "exec", "-i", "c1", *remote(48_000))),
        ("echo 'a  b' {host}", ("echo", "a  b", "c1", *remote(48_000))),
        ("echo x-{host}.y {command} z", ("echo", "x-c1.y", shlex.join(remote(48_000)), "z")),
    ],
)
def test_a_template_becomes_words(template: str, expected: tuple[str, ...]) -> None:
    assert made("exec", "c1", template).transports == (Transport(hosts=("c1",), argv=expected, piece=48_000),)


@pytest.mark.parametrize("template", ["docker exec -it", "/usr/bin/podman exec -t {host}", "wrapper --tty {host}"])
def test_a_template_with_a_terminal_is_refused(template: str) -> None:
    with pytest.raises(UsageError) as caught:
        made("exec", "c1", template)
    assert "terminal" in caught.value.message and "exec -i" in caught.value.help


def test_a_program_that_is_not_here() -> None:
    with pytest.raises(UsageError) as caught:
        made("exec", "c1", "no-such-program-here {host}")
    assert "no-such-program-here is not on this machine" in caught.value.message


# --- mpi ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1 slots=2\nn2 slots = 4 max_slots=8\n", ["n1", "n2"]),
        ("n1:2\nn2:4 binding=rr\n", ["n1", "n2"]),
        ("# all\n\n  n1  # one\nann@n2\nfe80::1\n", ["n1", "ann@n2", "fe80::1"]),
        ("n1 slots=0\nn2", ["n2"]),
        ("n1\r\nn2\r\n", ["n1", "n2"]),
        ("", []),
    ],
)
def test_files_of_hosts(text: str, expected: list[str]) -> None:
    assert parse_hostfile(text) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "names no host"),
        (b"# only\n", "names no host"),
        (b"\x7fELF\xff\xfe", "is not text"),
        (b"-oProxyCommand=id slots=1\n", "is not a host name"),
        (b"$(id)\n", "is not a host name"),
        (b"n1\n<html>\n", "is not a host name"),
        (b"n1\n" * 2_000_000, "too long"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_not_of_hosts(tmp_path: Path, data: bytes | None, message: str) -> None:
    path = tmp_path / "hosts"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_hostfile(str(path))
    assert message in caught.value.message and "slots=8" in caught.value.help


# --- pdsh --------------------------------------------------------------------------------------------


def test_pdsh_goes_by_ssh_with_the_settings_of_pdsh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-q -i key")
    made_plan = made("pdsh", "ann@n[1-2]")
    assert [transport.hosts for transport in made_plan.transports] == [("ann@n1",), ("ann@n2",)]
    argv = made_plan.transports[1].argv
    assert argv[0] == "ssh" and "-oBatchMode=yes" in argv
    assert argv[-6:-1] == ("-q", "-i", "key", "-lann", "n2")
    assert tuple(shlex.split(argv[-1])) == remote(48_000)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PDSH_RCMD_TYPE", "rsh"),
        ("PDSH_SSH_ARGS_APPEND", "-n"),
        ("PDSH_SSH_ARGS_APPEND", "-q n9"),
        ("PDSH_SSH_ARGS_APPEND", "-p"),
        ("PDSH_SSH_ARGS", "-tt %h"),
    ],
)
def test_settings_of_pdsh_that_leave_no_input(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError) as caught:
        made("pdsh", "n1")
    assert variable in caught.value.message and caught.value.help


# --- Slurm -------------------------------------------------------------------------------------------


def test_nodes_share_an_srun_only_where_they_are_many_and_never_with_one_in_doubt() -> None:
    states = {"n2": NodeState("down*", "on fire"), "n3": NodeState("allocated*"), "n4": NodeState("draining")}
    parts, lost = grouped(("n1", "n2", "n3", "n4", "n5"), states)
    assert parts == [["n1"], ["n4"], ["n5"], ["n3"]]
    assert list(lost) == ["n2"] and "on fire" in lost["n2"].what
    many = [f"n{number}" for number in range(1000)]
    parts, _ = grouped(many, {"n7": NodeState("mixed*")})
    assert sorted(map(len, parts))[-1] == 63 and ["n7"] in parts and len(parts) == 17
    assert sorted(node for part in parts for node in part) == sorted(many)
    assert grouped(["n2"], states)[0] == []


# --- causes ------------------------------------------------------------------------------------------

# What the programs really said (OpenSSH 9.2, Slurm 22.05, Open MPI 4.1): status, text, kind, words.
SAID = [
    ("ssh", 255, "ssh: Could not resolve hostname nosuch: Name or service not known\n", "unreachable", "nosuch"),
    ("ssh", 255, "ssh: connect to host 10.1.2.3 port 23: Connection refused\n", "refused", "10.1.2.3 port 23"),
    ("ssh", 255, "ssh: connect to host 10.1.2.3 port 22: Connection timed out\n", "unreachable", "no answer"),
    ("ssh", 255, "ssh: connect to host 10.1.2.3 port 22: No route to host\n", "unreachable", "no route to 10.1.2.3"),
    (
        "ssh",
        255,
        "No ED25519 host key is known for 10.1.2.3 and you have requested strict checking.\n"
        "Host key verification failed.\n",
        "refused",
        "accept-new",
    ),
    (
        "ssh",
        255,
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nSHA256:v198.\nHost key verification failed.\n",
        "refused",
        "ssh-keygen -R n3",
    ),
    ("ssh", 255, "me@10.1.2.3: Permission denied (publickey,keyboard-interactive).\n", "refused", "publickey"),
    (
        "ssh",
        255,
        "Permissions 0644 for './k' are too open.\nLoad key \"./k\": bad permissions\nme@n3: Permission denied (x).",
        "refused",
        "chmod 600 ./k",
    ),
    (
        "ssh",
        255,
        "Connection timed out during banner exchange\nConnection to 10.1.2.3 port 22 timed out\n",
        "timed-out",
        "",
    ),
    (
        "ssh",
        255,
        "kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.1.2.3 port 22\n",
        "refused",
        "MaxStartups",
    ),
    (
        "ssh",
        255,
        "ssh: Could not resolve hostname gate: Name or service not known\n"
        "kex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 65535\n",
        "unreachable",
        "gate",
    ),
    (
        "ssh",
        255,
        "ssh: Could not resolve hostname gate: Name or service not known\n"
        "banner exchange: Connection to UNKNOWN port 65535: Broken pipe\n",
        "unreachable",
        "gate",
    ),
    ("ssh", 255, "Timeout, server 10.1.2.3 not responding.\n", "unreachable", "mid-session"),
    ("ssh", 255, "Connection to 10.1.2.3 closed by remote host.\n", "failed", "mid-session"),
    ("ssh", 255, "command-line: line 0: Bad configuration option: foo\n", "failed", "foo"),
    ("ssh", 255, "Can't open user config file /nonexist: No such file or directory\n", "failed", "/nonexist"),
    ("ssh", 1, "This account is currently not available.\n", "refused", "no shell"),
    ("ssh", 127, "sh: 1: exec: python9: not found\n", "no-python", "python9"),
    ("ssh", 127, "bash: line 1: python3: command not found\n", "no-python", "python3"),
    ("ssh", 127, "env: ‘python3’: No such file or directory\n", "no-python", "it has no python3"),
    ("ssh", 127, "bash: foo: command not found\n", "no-python", "foo"),
    ("ssh", 1, "sudo: a password is required\n", "refused", "NOPASSWD"),
    ("ssh", 1, "bash: line 1: conda: command not found\n", "failed", "conda"),
    ("ssh", 255, "", "unreachable", "without a message"),
    ("ssh", None, "", "timed-out", "--deadline"),
    ("ssh", -9, "", "failed", "signal 9"),
    ("ssh", 0, "Welcome!\n", "failed", "Welcome!"),
    ("ssh", 3, "x\n", "failed", "status 3: x"),
    ("exec", 137, "", "failed", "signal 9"),
    ("exec", 255, "", "failed", "status 255"),
    ("exec", 0, "", "failed", "pass on standard input"),
    (
        "exec",
        255,
        "Error: can only create exec sessions on running containers: container state improper\n",
        "unreachable",
        "is not running",
    ),
    ("pdsh", 255, "ssh: connect to host 10.1.2.3 port 22: Connection timed out\n", "unreachable", "10.1.2.3"),
    ("pdsh", 255, "", "unreachable", "PDSH_RCMD_TYPE=ssh pdsh -S -w n3"),
    ("slurm", 1, "srun: error: Unable to create step for job 11: Access/permission denied\n", "refused", "sudo -u"),
    ("slurm", 1, "srun: error: Unable to create step for job 1: Requested nodes are busy\n", "failed", "ssh:"),
    ("slurm", 1, "srun: error: Slurm job 3 has expired\nsrun: Check SLURM_JOB_ID environment v\n", "failed", "ended"),
    (
        "slurm",
        233,
        "srun: error: Task launch for StepId=1.13 failed on node n3: Communication connection failure\n"
        "srun: error: Application launch failed: Communication connection failure\nsrun: Job step aborted\n",
        "unreachable",
        "Communication",
    ),
    (
        "slurm",
        233,
        "srun: error: Task launch for StepId=1.13 failed on node n4: Communication connection failure\n"
        "srun: Job step aborted\nsrun: error: n3: task 0: Killed\n",
        "failed",
        "n4 could not be started",
    ),
    (
        "slurm",
        137,
        "slurmstepd-n3: error: *** STEP 1.10 ON n1 CANCELLED AT 2026-11-15T16:07:18 ***\n",
        "failed",
        "step",
    ),
    (
        "slurm",
        3,
        "srun: cluster configuration lacks support for cpu binding\nsrun: error: n3: task 0: Exited with exit code 3\n",
        "failed",
        "status 3",
    ),
    (
        "mpi",
        255,
        "ssh: connect to host 10.1.2.3 port 22: Connection timed out\n-----\nORTE was unable to reliably start one or "
        "more daemons.\nThis usually is caused by:\n* lack of authority to execute on one or more specified nodes.\n",
        "unreachable",
        "10.1.2.3",
    ),
    ("mpi", 255, "ORTE was unable to reliably start one or more daemons.\n", "unreachable", "mpirun --host n3"),
    ("mpi", 255, "bash: line 1: orted: command not found\nORTE was unable to reliably start", "failed", "PATH|login"),
    ("mpi", 255, "[proxy:0:0@n1] pmip_cb (pmip_cb.c:934): process reading stdin too slowly", "failed", "MPICH"),
    ("mpi", 1, "A process or daemon was unable to complete a TCP connection\n", "failed", "firewall"),
    (
        "exec",
        1,
        "Cannot connect to the Docker daemon at unix:///nonex. Is the docker daemon running?\n",
        "refused",
        "DOCKER_HOST",
    ),
    ("exec", 1, "The connection to the server localhost:8080 was refused - did you specify", "refused", "kubectl"),
    ("exec", 1, "Error response from daemon: No such container: n3\n", "unreachable", "docker ps"),
    ("exec", 1, 'Error from server (NotFound): pods "n3" not found\n', "unreachable", "kubectl get pods"),
    (
        "exec",
        126,
        'OCI runtime exec failed: exec failed: unable to start container process: exec: "sh": executable file '
        "not found in $PATH: unknown\n",
        "no-python",
        "no shell",
    ),
]


@pytest.mark.parametrize(("scheme", "status", "text", "kind", "words"), SAID)
def test_what_programs_say_has_a_cause_and_a_remedy(
    scheme: str, status: int | None, text: str, kind: str, words: str
) -> None:
    lost = diagnose(scheme, "n3", status, text)
    assert lost.kind == kind, lost
    assert re.search(words, lost.what + lost.remedy), lost
    assert lost.remedy and "{" not in lost.what + lost.remedy


@given(
    st.sampled_from(["ssh", "pdsh", "slurm", "mpi", "exec"]),
    st.one_of(st.none(), st.integers(-64, 255)),
    st.lists(st.one_of(st.text(), st.sampled_from([row[2] for row in SAID])), max_size=4).map("\n".join),
)
def test_whatever_they_say_is_one_printable_line(scheme: str, status: int | None, text: str) -> None:
    lost = diagnose(scheme, "me@n3", status, text + "\x1b[2J")
    assert lost.kind in ("unreachable", "refused", "no-python", "timed-out", "failed")
    assert "\x1b" not in lost.what + lost.remedy and "\n" not in lost.what + lost.remedy
    assert len(lost.what) < 400
