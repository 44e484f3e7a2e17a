"""One host by way of `exec:`, which is this machine: agents are real processes, and so are those they look at."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.processes import alive
from support.waiting import DEADLINE_SECONDS as DEADLINE
from support.waiting import free_port, wait_for

from .attaching import link_of, state_of
from .console_program import launcher_variables
from .terminals import BREAKRANKS, Place

HOST = "exec:env BREAKRANKS_TEST={host}@here"
JOB = """
import os, threading, time
def load_batch():
    path = "/mnt/shard-0007"
    time.sleep(1000)
def step():
    load_batch()
open(os.environ["READY"] + os.environ["RANK"], "w").close()
step()
"""


class Job(Place):
    """Two ranks of a job of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        program = folder / "train.py"
        program.write_text(JOB)
        port = str(free_port())
        self.key = f"python-{port}"
        named = {"MASTER_PORT": port, "READY": str(folder / "ready")}
        self.ranks = [
            self.start(
                [sys.executable, str(program)], {**launcher_variables(rank, 2), **named}, stdin=subprocess.DEVNULL
            ).pid
            for rank in range(2)
        ]
        wait_for("both ranks", lambda: all((folder / f"ready{rank}").exists() for rank in range(2)))

    def watching(self) -> subprocess.Popen[str]:
        """A command that stays, with its agent at work."""
        controller = self.start(
            [BREAKRANKS, "top", HOST, "--job", self.key, "--deadline", "60"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert controller.stdout is not None
        assert "job python" in controller.stdout.readline()
        return controller


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as job:
        yield job


@pytest.fixture
def br(job: Job) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(command: str, *words: str, target: str = HOST) -> subprocess.CompletedProcess[str]:
        which = [] if command == "hosts" else ["--job", job.key]
        return job.call([BREAKRANKS, command, target, "--deadline", "60", *which, *words], {"BREAKRANKS_DEBUG": "1"})

    return call


Br = Callable[..., subprocess.CompletedProcess[str]]


def test_ps_and_stacks(br: Br, job: Job) -> None:
    listed = br("ps", "--json")
    assert listed.returncode == 0, listed.stderr
    [found] = json.loads(listed.stdout)["jobs"]
    assert [(rank["rank"], rank["host"], rank["pid"]) for rank in found["processes"]] == [
        (0, "here", job.ranks[0]),
        (1, "here", job.ranks[1]),
    ]
    shown = br("stacks")
    assert shown.returncode == 0, shown.stderr
    assert "load_batch" in shown.stdout and "[0-1]" in shown.stdout


def test_one_rank_of_it(br: Br) -> None:
    shown = br("stacks", "--json", "--rank", "1")
    assert shown.returncode == 0, shown.stderr
    assert [one["ranks"] for one in json.loads(shown.stdout)["classes"]] == ["1"]
    wrong = br("stacks", "--rank", "7")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "rank 7 is not in this job" in wrong.stderr


def test_a_snapshot_says_what_why_said(br: Br, tmp_path: Path) -> None:
    file = tmp_path / "hang.brk"
    first = br("why", "--json", "--save", str(file), "--patience", "0")
    assert first.returncode in (0, 1), first.stderr
    again = br("why", "--json", target=str(file))
    one, two = json.loads(first.stdout), json.loads(again.stdout)
    assert one["classes"] == two["classes"]
    assert one["verdict"] == two["verdict"]
    assert (file.stat().st_mode & 0o777) == 0o600


def test_eval_attach_and_leave(br: Br, job: Job) -> None:
    told = br("eval", "path", "--json")
    assert told.returncode == 0, told.stderr
    [answer] = json.loads(told.stdout)["answers"]
    assert (answer["ranks"], answer["value"]) == ("0-1", "'/mnt/shard-0007'")
    asked = br("attach", "-c", "p path", "--json")
    assert asked.returncode == 0, asked.stderr
    [line] = [json.loads(line) for line in asked.stdout.splitlines() if '"answers"' in line]
    assert [(one["ranks"], one["text"].strip()) for one in line["answers"]] == [("0-1", "'/mnt/shard-0007'")]
    for pid in job.ranks:
        wait_for("nothing of ours to be left in it", lambda pid=pid: len(os.listdir(f"/proc/{pid}/task")) == 1)


def test_top_once(br: Br) -> None:
    shown = br("top", "--once")
    assert shown.returncode in (0, 1), shown.stderr
    assert "load_batch" in shown.stdout


def test_hosts_says_how_far_each_goes(br: Br) -> None:
    found = json.loads(br("hosts", "--json").stdout)
    [host] = found["hosts"]
    assert host["host"] == "here"
    assert [step["step"] for step in host["steps"]] == ["log in", "python", "run", "processes", "ranks", "stacks"]
    # Others may have jobs here whose stacks cannot be read.
    assert all(step["fine"] for step in host["steps"][:-1])
    assert host["stops_at"] == (None if host["steps"][-1]["fine"] else "stacks")
    lost = br("hosts", target="exec:false {host}@here")
    assert lost.returncode == 2
    assert "log in" in lost.stdout and "failed" in lost.stdout
    missing = br("hosts", target="exec:/nonexistent/tool {host}@here")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "/nonexistent/tool" in missing.stderr


def test_the_same_host_twice_is_seen_once(br: Br) -> None:
    done = br("stacks", "--json", target="exec:env BREAKRANKS_TEST={host}@here,there")
    assert done.returncode == 0, done.stderr
    assert [one["ranks"] for one in json.loads(done.stdout)["classes"]] == ["0-1"]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("false {host}", "none of the hosts"),
        ("sh -c 'echo no way in >&2; exit 7' {host}", "no way in"),
        (f"{shlex.quote(sys.executable)} -c print('@br1') {{host}}", "none of the hosts"),
    ],
)
def test_no_host_is_a_clear_word(br: Br, template: str, words: str) -> None:
    done = br("stacks", target=f"exec:{template}@here")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_host_that_says_nothing_costs_the_deadline(br: Br) -> None:
    done = br("stacks", "--deadline", "1.5", target="exec:sh -c 'exec sleep 100' {host}@here")
    assert done.returncode == 2
    assert "here" in done.stderr


def children(pid: int) -> list[int]:
    """Those that any thread of it started."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(one) for one in tasks.read_text().split()]
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    below = children(pid)
    return below + [other for one in below for other in descendants(one)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_agent_ends_with_its_controller(job: Job, number: int) -> None:
    controller = job.watching()
    assert controller.stdout is not None
    below = descendants(controller.pid)
    assert below
    controller.send_signal(number)
    controller.stdout.read()
    controller.wait(DEADLINE)
    wait_for("its agent to end", lambda: not any(alive(pid) for pid in below))
    for pid in job.ranks:
        wait_for("it to sleep", lambda pid=pid: state_of(pid) == "S")  # type: ignore[misc]


def listeners() -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                found.add(words[1])
    return found


def test_nothing_listens(job: Job) -> None:
    before = listeners()
    controller = job.watching()
    sockets = {link_of(fd) for pid in [controller.pid, *descendants(controller.pid)] for fd in handles(pid)}
    inodes = {one[8:-1] for one in sockets if one.startswith("socket:")}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        assert not inodes & {row[9] for row in rows}
    controller.terminate()
    controller.wait(DEADLINE)
    with socket.socket() as probe:  # that the look at listeners sees one
        probe.bind(("127.0.0.1", 0))
        probe.listen()
        assert listeners() - before


def handles(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


STOPS = """
import os, breakranks
breakranks.breakpoint()
open(os.environ["PASSED"], "w").close()
"""


def test_a_script_leaves_a_stopped_rank_as_it_was(tmp_path: Path) -> None:
    """Its last word must reach the rank before the way to it is closed."""
    program, passed = tmp_path / "stops.py", tmp_path / "passed"
    program.write_text(STOPS)
    command = [BREAKRANKS, "console", HOST, "--deadline", "60", "--wait", "90", "-c"]
    with Place(tmp_path) as place:
        rank = place.start(
            [sys.executable, str(program)],
            {**launcher_variables(0, 1), "PASSED": str(passed)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(3):
            done = place.call([*command, "p 1 + 1"])
            assert (done.returncode, "2" in done.stdout) == (0, True), done.stderr
        assert not passed.exists()
        done = place.call([*command, "go"])
        assert done.returncode == 0, done.stderr
        assert rank.wait(DEADLINE) == 0
        assert passed.exists()


def test_users_of_one_host_are_one_host(br: Br) -> None:
    done = br("stacks", "--json", target="exec:env BREAKRANKS_TEST={host}@ann@here,bob@here")
    assert done.returncode == 0, done.stderr
    assert [one["ranks"] for one in json.loads(done.stdout)["classes"]] == ["0-1"]


def test_a_secret_of_the_target_goes_into_no_snapshot(br: Br, tmp_path: Path) -> None:
    from breakranks.snapshot.snapshot_file import load

    file = tmp_path / "kept.brk"
    target = "exec:env API_TOKEN=hunter2hunter2 {host}@here"
    done = br("snapshot", "-o", str(file), target=target.replace(" {host}", " HOST={host}"))
    assert done.returncode == 0, done.stderr
    assert load(str(file)).target.startswith("'exec:env API_TOKEN=***")
