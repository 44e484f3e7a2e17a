"""Every way really gets there: ssh, pdsh, srun, mpirun and a template, to real hosts. And what is said if not.

What is run there is no agent but a few lines of Python that stand for one: they answer what they hear.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from breakranks.errors import BreakranksError, ManyJobsError, NoJobError, UsageError
from breakranks.hosts.transports import HostPlan, Transport, TransportOptions, diagnose, plan, slurm
from breakranks.hosts.transports.pdsh import ssh_words
from breakranks.jobs.targets import Hosts, parse_target
from cluster.nodes import Nodes
from cluster.slurm import Slurm
from support.waiting import wait_for

NONCE = "0123456789abcdef"
STRANGE = ("a  b", "*", "$HOME", "`id`", "%h %n %%", "é!", "'\"\\", "")

# Says who and where it is, and what it was given; then echoes each line that it hears, by its length and sum.
# With a number, it first sends so many long lines, in odd portions.
AGENT = r"""
import hashlib, json, os, sys
count, size = int(sys.argv[1]), int(sys.argv[2])
def say(**what):
    os.write(1, b"@br1 " + json.dumps(dict(what, host=os.uname().nodename)).encode() + b"\n")
say(pid=os.getpid(), words=sys.argv[3:])
for number in range(count):
    line = b"@br1 " + json.dumps({"host": os.uname().nodename, "number": number}).encode()
    line += b" " * (size - len(line) - 1) + b"\n"
    cut = number * 7919 % size
    os.write(1, line[:cut]); os.write(1, line[cut:])
rest = b""
while data := os.read(0, 65536):
    *lines, rest = (rest + data).split(b"\n")
    for line in lines:
        say(length=len(line), sum=hashlib.md5(line).hexdigest())
"""


def agent(count: int = 0, size: int = 900) -> Callable[[int], tuple[str, ...]]:
    return lambda piece: (sys.executable, "-S", "-c", AGENT, str(count), str(size), *STRANGE)


def shell(command: str) -> Callable[[int], tuple[str, ...]]:
    return lambda piece: ("sh", "-c", command)


@pytest.fixture
def options(nodes: Nodes) -> TransportOptions:
    return TransportOptions(ssh_config=str(nodes.ssh_config), deadline=60.0)


class Talk:
    """A carrier that runs, and what it says."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            transport.argv,
            env={**os.environ, **transport.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )

    def hear(self) -> dict[str, object]:
        """The next line of ours; others are skipped."""
        for line in self.process.stdout or ():
            before, mark, text = line.partition(b"@br1 ")
            if mark:
                return {**json.loads(text), "before": before.decode()}
        raise EOFError(self.said())

    def send(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode()


@contextmanager
def talk(transport: Transport) -> Iterator[Talk]:
    running = Talk(transport)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate(timeout=60)
        running.errors.close()


def outcome(transport: Transport) -> tuple[int, str]:
    """Run a carrier to its end, with nothing to hear."""
    done = subprocess.run(
        transport.argv,
        env={**os.environ, **transport.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    return done.returncode, done.stderr


def runs(nodes: Nodes, host: str, pid: object) -> bool:
    return nodes[host].run(["test", "-d", f"/proc/{pid}"]).returncode == 0


def lines_of(size: int, count: int) -> list[bytes]:
    return [(b"%d " % number).ljust(size, b"x") for number in range(count)]


def summed(line: bytes) -> str:
    import hashlib

    return hashlib.md5(line).hexdigest()


def check_conversation(made: HostPlan, nodes: Nodes, size: int, *, heard: int = 30) -> None:
    """Each host is there, gets every word as it was, and hears long lines; they end when their carrier is killed."""
    for transport in made.transports:
        with talk(transport) as one:
            first = one.hear()
            assert first["words"] == list(STRANGE)
            assert transport.hosts == (str(first["host"]),)
            sent = lines_of(size, heard)
            one.send(b"".join(line + b"\n" for line in sent))
            for line in sent:
                assert one.hear()["sum"] == summed(line)
            one.process.kill()
            wait_for("its end", lambda: not runs(nodes, transport.hosts[0], first["pid"]))  # noqa: B023


# --- ssh, and templates ------------------------------------------------------------------------------


def test_ssh(nodes: Nodes, options: TransportOptions) -> None:
    made = plan(parse_target("ssh:n[1-2]"), options, agent())
    assert made.hosts == ("n1", "n2")
    check_conversation(made, nodes, 64_000)


def test_a_template_that_gives_words_and_one_that_gives_a_text(nodes: Nodes, tmp_path: Path) -> None:
    target = f"exec:ssh -F {nodes.ssh_config} -oBatchMode=yes {{host}} {{command}}@n1"
    check_conversation(plan(parse_target(target), TransportOptions(), agent()), nodes, 64_000)
    enter = tmp_path / "enter"
    enter.write_text('#!/bin/sh\nhost=$1; shift\nexec nsenter --target="$host" --all --no-fork -- "$@"\n')
    enter.chmod(0o755)
    pid = nodes["n2"].pid
    made = plan(Hosts("exec", str(pid), str(enter)), TransportOptions(), agent())
    with talk(made.transports[0]) as one:
        first = one.hear()
        assert (first["host"], first["words"]) == ("n2", list(STRANGE))


def test_a_jump_of_the_configuration_is_made(nodes: Nodes, tmp_path: Path) -> None:
    config = tmp_path / "config"
    address = nodes["n2"].address
    jump = f"Host far\n  HostName {address}\n  ProxyJump n1\n  RemoteCommand id\n  LocalForward 127.0.0.1:22 x:1\n"
    config.write_text(jump + nodes.ssh_config.read_text())
    made = plan(
        parse_target("ssh:far"),
        TransportOptions(ssh_config=str(config)),
        shell('echo "@br1 {\\"from\\": \\"$SSH_CLIENT\\"}"'),
    )
    with talk(made.transports[0]) as one:
        assert str(one.hear()["from"]).split()[0] == nodes["n1"].address


def test_a_shared_connection_is_not_left_behind(nodes: Nodes, tmp_path: Path) -> None:
    config = tmp_path / "config"
    socket = tmp_path / "%h"
    config.write_text(f"ControlMaster auto\nControlPath {socket}\nControlPersist 60\n" + nodes.ssh_config.read_text())
    made = plan(parse_target("ssh:n1"), TransportOptions(ssh_config=str(config)), shell("true"))
    assert outcome(made.transports[0])[0] == 0
    assert os.listdir(tmp_path) == ["config"]


@pytest.mark.parametrize(
    ("where", "ssh_options", "kind", "words"),
    [
        ("no-such-host", "", "unreachable", "no-such-host is unknown"),
        ("n1", "-oUserKnownHostsFile=/dev/null", "refused", "host key is unknown"),
        ("n1", "-l nobody", "refused", "permission denied"),
        ("n1", "-p 23", "refused", "nothing listens"),
        ("n1", "-J no-such-gate", "unreachable", "no-such-gate"),
        ("n1", "-oNoSuchThing=1", "failed", "nosuchthing"),
        ("n1", "-oProxyCommand=false", "refused", "closed before the login"),
    ],
)
def test_what_ssh_says(nodes: Nodes, where: str, ssh_options: str, kind: str, words: str) -> None:
    asked = TransportOptions(ssh_config=str(nodes.ssh_config), ssh_options=ssh_options)
    made = plan(parse_target(f"ssh:{where}"), asked, shell("true"))
    status, said = outcome(made.transports[0])
    lost = diagnose("ssh", where, status, said)
    assert (lost.kind, words in lost.what) == (kind, True), (lost, said)


def test_ssh_to_a_host_that_is_cut_off_and_to_one_without_python(nodes: Nodes, options: TransportOptions) -> None:
    nodes.cut("n3")
    try:
        soon = TransportOptions(ssh_config=options.ssh_config, deadline=4.0)
        (transport,) = plan(parse_target("ssh:n3"), soon, shell("true")).transports
        assert "-oConnectTimeout=3" in transport.argv  # it gives up before we do, and says why
        status, said = outcome(transport)
        assert diagnose("ssh", "n3", status, said).kind == "unreachable", said
    finally:
        nodes.heal("n3")
    status, said = outcome(plan(parse_target("ssh:n1"), options, shell("exec python9")).transports[0])
    assert diagnose("ssh", "n1", status, said).kind == "no-python", said


# --- pdsh --------------------------------------------------------------------------------------------


def test_pdsh(nodes: Nodes, options: TransportOptions) -> None:
    made = plan(parse_target("pdsh:n[1-2]"), options, agent())
    assert made.hosts == ("n1", "n2")
    check_conversation(made, nodes, 64_000)


@pytest.mark.parametrize("where", ["n1", "ann@n1", "ann@n1,n2"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"PDSH_SSH_ARGS_APPEND": "-v  -oHostKeyAlias=%h.%u.%n%% -oControlPath=%p"},
        {"PDSH_SSH_ARGS": "-q"},
        {"PDSH_SSH_ARGS": "-q -p 22 %h.cluster", "PDSH_SSH_ARGS_APPEND": "-4"},
        {"PDSH_SSH_ARGS": "-2 -a -x -l%u %h"},
        {"PDSH_SSH_ARGS": "-l bob %u@%h sudo -n"},
    ],
)
def test_the_words_for_ssh_are_those_of_pdsh(
    settings: dict[str, str], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a ssh that writes down what it was told WHEN pdsh and breakranks start it THEN it is told the same."""
    recorder = tmp_path / "ssh"
    recorder.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" >"$(mktemp {tmp_path}/told.XXXXXX)"\n')
    recorder.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    pdsh = subprocess.run(["pdsh", "-S", "-Rssh", "-w", where, "true"], capture_output=True, text=True, timeout=90)
    assert (pdsh.returncode, pdsh.stderr) == (0, "")
    told = sorted(file.read_text().split("\0")[1:-2] for file in tmp_path.glob("told.*"))  # after its -oConnectTimeout
    default = [] if "PDSH_SSH_ARGS" in settings else ["-2", "-a", "-x"]
    hosts = plan(parse_target(f"pdsh:{where}"), TransportOptions(), shell("true")).hosts
    ours = sorted(list(ssh_words(host, where.split(",").index(host))) for host in hosts)
    assert [[word for word in words if word not in default] for words in told] == ours


def test_what_is_said_of_hosts_by_pdsh(nodes: Nodes, options: TransportOptions) -> None:
    remote = shell('[ "$(uname -n)" = n2 ] && exec python9; exit 3')
    made = plan(parse_target("pdsh:n1,n2,no-such-host"), options, remote)
    lost = {one.hosts[0]: diagnose("pdsh", one.hosts[0], *outcome(one)) for one in made.transports}
    assert "status 3" in lost["n1"].what
    assert (lost["n2"].kind, lost["no-such-host"].kind) == ("no-python", "unreachable")


def test_hosts_that_pdsh_knows_itself(
    options: TransportOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts").write_text("n[1-2]\nann@m1\n")
    monkeypatch.setenv("WCOLL", str(tmp_path / "hosts"))
    assert plan(parse_target("pdsh:"), options, shell("true")).hosts == ("ann@m1", "n1", "n2")
    monkeypatch.delenv("WCOLL")
    with pytest.raises(UsageError, match="pdsh has no default hosts"):
        plan(parse_target("pdsh:"), options, shell("true"))


# --- mpirun ------------------------------------------------------------------------------------------


def test_mpirun(nodes: Nodes, options: TransportOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a process of another job of mpirun, which does not let itself be called there.
    inside = subprocess.run(["mpirun", "--allow-run-as-root", "-np", "1", "env", "-0"], capture_output=True, text=True)
    for variable in inside.stdout.split("\0"):
        if variable.startswith(("OMPI_", "PMIX_")):
            monkeypatch.setenv(*variable.split("=", 1))
    assert "OMPI_COMM_WORLD_RANK" in os.environ
    (tmp_path / "hosts").write_text("n1 slots=2\n# n9\nroot@n2:4\n")
    made = plan(parse_target(f"mpi:{tmp_path}/hosts"), options, agent(40, 64_000))
    assert made.hosts == ("n1", "root@n2")
    for transport, name in zip(made.transports, ("n1", "n2"), strict=True):
        with talk(transport) as one:
            first = one.hear()
            assert (first["host"], first["words"]) == (name, list(STRANGE))
            assert [one.hear()["number"] for _ in range(40)] == list(range(40))
            sent = lines_of(64_000, 60)
            one.send(b"".join(line + b"\n" for line in sent))
            assert [one.hear()["sum"] for _ in sent] == [summed(line) for line in sent]
            one.process.kill()
            wait_for("its end", lambda: not runs(nodes, name, first["pid"]))  # noqa: B023


def test_what_mpirun_says(options: TransportOptions, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("no-such-host\nn1\n")
    made = plan(parse_target(f"mpi:{tmp_path}/hosts"), options, shell("exit 3"))
    assert made.hosts == ("n1", "no-such-host")
    status, said = outcome(made.transports[1])
    assert diagnose("mpi", "no-such-host", status, said).kind == "unreachable", said
    status, said = outcome(made.transports[0])
    assert "status 3" in diagnose("mpi", "n1", status, said).what, said


def test_an_mpirun_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts").write_text("n1\n")
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho no libslurm.so.38 >&2; exit 127\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UsageError, match=r"mpirun does not work here: no libslurm\.so\.38"):
        plan(parse_target(f"mpi:{tmp_path}/hosts"), TransportOptions(), shell("true"))


# --- Slurm -------------------------------------------------------------------------------------------


@pytest.fixture
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    running: Slurm = request.getfixturevalue("slurm")
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return running


@pytest.fixture
def job(site: Slurm) -> Iterator[str]:
    number = site.submit("srun --nodes=2 --ntasks=2 sleep 600 & wait\n", "--nodes=3", "--ntasks=24", "--exclusive")
    wait_for("the step", lambda: f"{number}.0" in site._run("squeue", "-h", "-s", "-j", number, "-o", "%i").split())
    yield number
    site.cancel(number)


def test_a_slurm_job_and_a_step_of_it(
    nodes: Nodes, options: TransportOptions, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in another job, whose options are not for our srun.
    monkeypatch.setenv("SRUN_CPUS_PER_TASK", "64")
    monkeypatch.setenv("SLURM_UNBUFFEREDIO", "1")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    made = plan(parse_target(f"slurm:{job}"), options, agent())
    assert (made.hosts, made.slurm, made.lost) == (("n1", "n2", "n3"), (job, ""), {})
    check_conversation(made, nodes, 64_000)

    of_step = plan(parse_target(f"slurm:{job}.0"), options, agent())
    assert (of_step.hosts, of_step.slurm) == (("n1", "n2"), (job, "0"))
    with pytest.raises(NoJobError) as caught:
        plan(parse_target(f"slurm:{job}.7"), options, agent())
    assert f"slurm:{job}.0" in caught.value.help


def test_nodes_that_share_an_srun(
    nodes: Nodes, options: TransportOptions, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "MAX_STEPS", 1)
    count = 300
    made = plan(parse_target(f"slurm:{job}"), options, agent(count, 900))
    (transport,) = made.transports
    assert (transport.hosts, transport.piece) == (("n1", "n2", "n3"), 600)
    with talk(transport) as one:
        numbers: dict[object, list[object]] = {host: [] for host in transport.hosts}
        pids: dict[str, object] = {}
        while len(pids) < 3 or any(len(found) < count for found in numbers.values()):
            said = one.hear()
            if "pid" in said:
                pids[str(said["host"])] = said["pid"]
            else:
                numbers[said["host"]].append(said["number"])
        assert all(found == list(range(count)) for found in numbers.values())
        sent = lines_of(900, 500)
        one.send(b"".join(line + b"\n" for line in sent))
        sums: dict[object, list[object]] = {host: [] for host in transport.hosts}
        while any(len(found) < len(sent) for found in sums.values()):
            said = one.hear()
            sums[said["host"]].append(said["sum"])
        assert all(found == [summed(line) for line in sent] for found in sums.values())
        one.process.kill()
        for host, pid in pids.items():
            wait_for("its end", lambda: not runs(nodes, host, pid))  # noqa: B023


def test_a_node_that_slurm_has_given_up_does_not_hold_the_others_back(options: TransportOptions, site: Slurm) -> None:
    number = site.submit("sleep 600\n", "--nodes=3", "--no-kill")
    site._run("scontrol", "update", "nodename=n3", "state=down", "reason=on fire")
    try:
        made = plan(parse_target(f"slurm:{number}"), options, agent())
        assert [transport.hosts for transport in made.transports] == [("n1",), ("n2",)]  # the job has lost it
        with talk(made.transports[0]) as one:
            assert one.hear()["host"] == "n1"
    finally:
        site.cancel(number)
        site._run("scontrol", "update", "nodename=n3", "state=idle")


def test_a_node_that_has_just_gone_is_lost_alone(nodes: Nodes, options: TransportOptions, job: str) -> None:
    made = plan(parse_target(f"slurm:{job}"), options, agent())
    nodes.cut("n3")
    try:
        with talk(made.transports[0]) as one:
            assert one.hear()["host"] == "n1"
            status, said = outcome(made.transports[2])
            assert diagnose("slurm", "n3", status, said).kind == "unreachable", said
            assert one.process.poll() is None, one.said()
            one.send(b"x\n")
            assert one.hear()["sum"] == summed(b"x")
    finally:
        nodes.heal("n3")


def raised(target: str, options: TransportOptions) -> BreakranksError:
    with pytest.raises(BreakranksError) as caught:
        plan(parse_target(target), options, shell("true"))
    return caught.value


def test_slurm_jobs_that_cannot_be_looked_at(options: TransportOptions, site: Slurm, job: str) -> None:
    assert "has no job 999999" in raised("slurm:999999", options).message
    hand_in = ("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 9")
    pending = site._run(*hand_in, "--nodes=3", "--exclusive").strip()
    other = site._run(*hand_in, "--hold", "--array=1-2").strip()
    try:
        waits = raised(f"slurm:{pending}", options)
        assert isinstance(waits, NoJobError) and "has not started yet" in waits.message
        assert "has not started yet" in raised(f"slurm:{other}_1", options).message
    finally:
        site.cancel(pending)
        site.cancel(other)
    assert "has ended: CANCELLED" in raised(f"slurm:{pending}", options).message
    assert plan(parse_target("slurm:"), options, shell("true")).slurm == (job, "")  # the only one
    [row] = slurm.slurm_jobs(deadline=10)
    assert row.id == job
    with pytest.raises(ManyJobsError) as many:
        slurm._only([row, row._replace(id="7_1", number="9")])
    assert f"slurm:{job}" in many.value.message and "slurm:7_1" in many.value.help


def test_a_slurm_job_of_somebody_else(options: TransportOptions, site: Slurm) -> None:
    number = site.submit("sleep 600\n", "--uid=nobody", "--chdir=/", "--output=/dev/null")
    try:
        refused = raised(f"slurm:{number}", options)
        assert "belongs to nobody" in refused.message and "sudo -u nobody" in refused.help
        none = raised("slurm:", options)
        assert isinstance(none, NoJobError) and "no running job" in none.message
    finally:
        site.cancel(number)


def test_without_slurm(options: TransportOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    assert "squeue did not answer within" in raised("slurm:1", TransportOptions(deadline=1.0)).message
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = raised("slurm:1", options)
    assert "squeue is not on this machine" in missing.message and "login node" in missing.help


def test_what_srun_says(options: TransportOptions, site: Slurm, job: str) -> None:
    made = plan(parse_target(f"slurm:{job}"), options, shell("exit 3"))
    status, said = outcome(made.transports[0])
    assert "status 3" in diagnose("slurm", "n1", status, said).what, said
    made = plan(parse_target(f"slurm:{job}"), options, shell("exec python9"))
    status, said = outcome(made.transports[0])
    assert diagnose("slurm", "n1", status, said).kind == "no-python", said
    argv = tuple(word.replace(f"--jobid={job}", "--jobid=999999") for word in made.transports[0].argv)
    status, said = outcome(Transport(hosts=("n1",), argv=argv, piece=600))
    assert diagnose("slurm", "n1", status, said).what == "the job has ended", said
