"""`breakranks watch` over jobs of plain processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import Processes, alive
from support.waiting import free_port, wait_for

from .terminals import BREAKRANKS, HERE

PROGRAM = HERE / "watch_program.py"
SECONDS = "6"
STALLS = "wait_for_rank"  # what `why` says of a rank that waits for another at a socket


class Job:
    """Two ranks of the program, and watches over them."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder = folder
        self.processes = processes
        self.ranks: list[subprocess.Popen[Any]] = []

    def begin(self, *words: str) -> None:
        for word in words:
            self.tell(word)
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for rank in range(2):
            env = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank), "WATCH_FOLDER": str(self.folder)}
            self.ranks.append(self.processes.start([sys.executable, str(PROGRAM)], env))
        wait_for("both ranks", lambda: all(self.has(f"ready.{rank}") for rank in range(2)))

    def tell(self, word: str) -> None:
        (self.folder / word).touch()

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def go_on(self) -> None:
        self.tell("go")
        self.ranks[1].send_signal(signal.SIGUSR1)

    def end(self) -> None:
        self.tell("end")
        self.go_on()
        for rank in self.ranks:
            rank.wait(60)

    @property
    def target(self) -> str:
        return f"pid:{','.join(str(rank.pid) for rank in self.ranks)}"

    def watch(self, *words: str, target: str | None = None) -> Watch:
        where = [self.target if target is None else target] if target != "" else []
        return Watch(self, [*where, "--on-hang", SECONDS, *words])

    @property
    def live(self) -> list[int]:
        return [rank.pid for rank in self.ranks if alive(rank.pid)]


class Watch:
    """One watch. What it prints goes to files."""

    def __init__(self, job: Job, words: list[str]) -> None:
        number = len(list(job.folder.glob("watch.*.out")))
        self.out_path, self.err_path = (job.folder / f"watch.{number}.{name}" for name in ("out", "err"))
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = job.processes.start(
                [BREAKRANKS, "watch", *words], {"BREAKRANKS_LOG": str(job.folder / f"watch.{number}.log")},
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip
        self.log_path = job.folder / f"watch.{number}.log"

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        return self.err_path.read_text()

    @property
    def looks(self) -> int:
        return self.log_path.read_text().count(" look ") if self.log_path.exists() else 0

    def wait_for_looks(self, number: int) -> None:
        wait_for(f"{number} looks", lambda: self.looks >= number or self.process.poll() is not None)
        assert self.process.poll() is None, (self.out, self.err)

    def says(self, text: str) -> None:
        wait_for(f"{text!r} of the watch", lambda: text in self.out or self.process.poll() is not None)
        assert text in self.out, (self.process.poll(), self.out, self.err)

    def ends(self, status: int) -> None:
        assert self.process.wait(120) == status, (self.process.returncode, self.out, self.err)
        assert "Traceback" not in self.err and "unexpected" not in self.err, self.err


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Processes(tmp_path) as processes:
        yield Job(tmp_path, processes)


def test_a_hang_is_reported_with_its_verdict_and_then_the_end(job: Job) -> None:
    # GIVEN a job that hangs while it is watched
    job.begin()
    command = "cat >verdict.txt; env | grep BREAKRANKS_HANG_ >variables.txt; echo to the pager; exit 3"
    watch = job.watch("--save", str(job.folder / "hangs"), "--exec", command)
    watch.wait_for_looks(3)
    assert watch.out == ""
    job.tell("stall")

    # THEN the verdict is printed, saved, and given to the command
    watch.says("saved: ")
    assert "no rank has made progress for" in watch.out and STALLS in watch.out
    wait_for("the command", lambda: "ended with status 3" in watch.err)
    assert "to the pager" in watch.err
    assert (job.folder / "verdict.txt").read_text().strip() == watch.out.strip()
    variables = dict(line.split("=", 1) for line in (job.folder / "variables.txt").read_text().splitlines())
    assert variables["BREAKRANKS_HANG_CULPRITS"] == "0", variables
    assert STALLS in variables["BREAKRANKS_HANG_SUMMARY"]
    saved = variables["BREAKRANKS_HANG_SNAPSHOT"]
    again = job.processes.call([BREAKRANKS, "why", "--json", saved])
    assert again.returncode == 1 and STALLS in json.loads(again.stdout)["verdict"]["summary"], again

    # AND only once, until it moves and ends
    watch.wait_for_looks(watch.looks + 4)
    assert watch.out.count("no rank has made progress for") == 1
    job.go_on()
    watch.says("the job makes progress again")
    job.end()
    watch.says("the job has ended")
    watch.ends(1)


def test_long_steps_of_work_are_no_hang(job: Job) -> None:
    job.begin("compute")
    watch = job.watch()
    wait_for("two steps, each twice as long as the watch waits", lambda: len(list(job.folder.glob("computed.*"))) >= 2)
    job.end()
    watch.ends(0)
    assert watch.out == "the job has ended\n"


def test_then_kill(job: Job) -> None:
    job.begin("stall", "stubborn")
    watch = job.watch("--then", "kill", "--json")
    watch.ends(1)
    hang, killed = map(json.loads, watch.out.splitlines())
    assert (hang["event"], hang["verdict"]["culprits"]) == ("hang", "0")
    assert hang["seconds"] >= float(SECONDS)
    assert (killed["event"], killed["left"]) == ("killed", [])
    assert not job.live


def test_a_job_that_hung_before_the_watch_began(job: Job) -> None:
    job.begin("stall")
    wait_for("it to stall", lambda: job.has("stalled"))
    watch = job.watch("--once")
    watch.ends(1)
    assert STALLS in watch.out
    assert len(job.live) == 2


def test_ctrl_c_ends_it_and_the_ranks_run_on(job: Job) -> None:
    job.begin()
    watch = job.watch()
    watch.wait_for_looks(2)
    watch.process.send_signal(signal.SIGINT)
    watch.ends(130)
    assert (watch.out, watch.err) == ("", "")
    assert len(job.live) == 2
    job.end()


def test_only_the_job_below_a_process(tmp_path: Path) -> None:
    """Two jobs on a machine. The watch waits for its own, and ends with the process above it."""
    (tmp_path / "other").mkdir()
    (tmp_path / "mine").mkdir()
    with Processes(tmp_path) as processes:
        other, mine = Job(tmp_path / "other", processes), Job(tmp_path / "mine", processes)
        other.begin("stall")
        port = free_port()
        script = (
            "read line; for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1"
            f' MASTER_PORT={port} WATCH_FOLDER={mine.folder} "$0" "$1" & done; wait'
        )
        above = processes.start(["bash", "-c", script, sys.executable, str(PROGRAM)], stdin=subprocess.PIPE)
        watch = mine.watch("--below", str(above.pid), target="")
        wait_for("it to search", lambda: watch.log_path.exists() and "looked for jobs" in watch.log_path.read_text())
        assert above.stdin is not None
        above.stdin.write(b"\n")
        above.stdin.flush()
        watch.wait_for_looks(6)  # long enough for the other job to be reported
        assert watch.out == ""
        mine.tell("stall")
        watch.says(STALLS)
        assert f"(pid {(mine.folder / 'ready.0').read_text()})" in watch.out, watch.out
        mine.tell("end")
        os.kill(above.pid, signal.SIGKILL)
        above.wait(60)
        watch.says("the job has ended")
        watch.ends(1)


def test_without_a_job(job: Job) -> None:
    done = job.processes.call([BREAKRANKS, "watch", "--job", "nowhere-to-be-found", "--on-hang", "10"])
    assert done.returncode == 2 and "no job" in done.stderr, done


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--on-hang", "0.1"),
        ("--on-hang", "nan"),
        ("--on-hang", "5", "--wait", "-1"),
        ("--on-hang", "5", "--save", "/proc/nowhere"),
        ("--on-hang", "5", "--below", "-4"),
        ("--on-hang", "5", "--then", "cry"),
        ("hang.brk", "--on-hang", "5"),
        ("ssh:n1", "--on-hang", "5", "--below", "1"),
    ],
)
def test_a_mistake_is_told_before_the_watch_begins(job: Job, words: tuple[str, ...]) -> None:
    done = job.processes.call([BREAKRANKS, "watch", *words])
    assert done.returncode == 2 and done.stderr and not done.stdout, done
    assert "Traceback" not in done.stderr and "unexpected" not in done.stderr, done
