"""`breakranks watch` over trainings of torch: what their flight recorders and loops show, and what it costs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import alive

from .running import BIN, HERE, Launch, wait_for

pytest.importorskip("torch")

PROGRAM = str(HERE / "watch_torch_program.py")
BREAKRANKS = str(BIN / "breakranks")


class Training(Launch):
    """Two ranks of the program, and a watch over them."""

    def begin(self, mode: str, *, torchrun: bool = False) -> None:
        start = self.torchrun if torchrun else self.by_hand
        start(2, PROGRAM, mode)

    def watch(self, seconds: float, *words: str) -> subprocess.Popen[Any]:
        """Start a watch, which waits for the job. What it prints goes to the file ``watched``."""
        words = ("watch", "--on-hang", str(seconds), "--wait", "120", *words)
        variables = {"BREAKRANKS_LOG": str(self.folder / "watch.log")}
        with open(self.folder / "watched", "wb") as out:
            return self.processes.start([BREAKRANKS, *words], variables, stdout=out, stderr=out)

    @property
    def target(self) -> str:
        wait_for("both ranks", lambda: len(self.pids_of_ranks()) == 2)
        return "pid:" + ",".join(map(str, self.pids_of_ranks()))

    def pids_of_ranks(self) -> list[int]:
        return [int(text) for path in sorted(self.folder.glob("ready.*")) if (text := path.read_text())]

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    @property
    def watched(self) -> str:
        return (self.folder / "watched").read_text()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    with Training(tmp_path) as job:
        yield job


def test_a_hang_is_told_before_the_timeout_of_its_group(training: Training) -> None:
    # GIVEN a training whose group gives up after 180 seconds
    training.begin("sleep")
    watch = training.watch(20, "--json", "--once", "--save", "hangs", training.target)

    # THEN the verdict comes while the ranks still wait
    assert watch.wait(120) == 1, training.watched
    hang = json.loads(training.watched)
    verdict = hang["verdict"]
    assert (verdict["kind"], verdict["culprits"], verdict["victims"]) == ("missing-from-collective", "1", "0"), verdict
    assert hang["seconds"] >= 20, hang["seconds"]
    assert "wait_for_quota" in verdict["summary"]
    [left] = [fact["seconds"] for fact in verdict["facts"] if fact["type"] == "OwnTimeout"]
    assert left > 0
    assert Path(training.folder / hang["snapshot"]).stat().st_size > 0
    assert all(map(alive, training.pids_of_ranks()))


def test_a_loop_over_some_lines_that_changes_nothing_is_a_hang(training: Training) -> None:
    training.begin("loop")
    watch = training.watch(8, "--json", "--once", training.target)
    assert watch.wait(120) == 1, training.watched
    verdict = json.loads(training.watched)["verdict"]
    assert verdict["culprits"] == "1" and verdict["kind"] in ("straggler", "busy-loop"), verdict
    assert "wait_for_batch" in verdict["summary"] or "train" in verdict["summary"], verdict


def test_long_steps_of_one_rank_are_no_hang(training: Training) -> None:
    # GIVEN a rank that validates for longer than the watch waits, while the other waits in a collective
    training.begin("slow")
    watch = training.watch(5, training.target)
    wait_for("three validations", lambda: len(list(training.folder.glob("validated.*"))) >= 3)
    assert training.watched == "", training.watched
    (training.folder / "end").touch()

    # THEN
    assert watch.wait(120) == 0, training.watched
    assert training.watched == "the job has ended\n"


def test_kill_ends_the_launcher_too(training: Training) -> None:
    training.begin("sleep", torchrun=True)
    [launcher] = training.started
    watch = training.watch(6, "--then", "kill", "--below", str(launcher.pid))
    assert watch.wait(120) == 1, training.watched
    assert "the job was killed" in training.watched and "wait_for_quota" in training.watched
    assert launcher.wait(120) != 0
    assert not [pid for pid in training.pids_of_ranks() if alive(pid)]


def test_the_ranks_of_a_restart_are_watched_too(training: Training) -> None:
    """torchrun restarts both ranks after one was killed; then they hang. Gloo may need several attempts to meet."""
    training.start(
        str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2", "--max-restarts=9", PROGRAM, "steps",
    )  # fmt: skip
    [launcher] = training.started
    watch = training.watch(6, "--below", str(launcher.pid))
    first = wait_for("both ranks", lambda: len(found := training.pids_of_ranks()) == 2 and found)
    log = training.folder / "watch.log"
    wait_for("two looks", lambda: log.exists() and log.read_text().count(" look ") >= 2)
    for path in training.folder.glob("ready.*"):
        path.unlink()
    os.kill(first[0], signal.SIGKILL)
    second = wait_for("both ranks again", lambda: len(found := training.pids_of_ranks()) == 2 and found)
    assert not set(first) & set(second)
    os.kill(second[1], signal.SIGSTOP)
    wait_for("the hang of the second attempt", lambda: "no rank has made progress" in training.watched)
    assert f"pid {second[1]}" in training.watched
    os.kill(second[1], signal.SIGCONT)
    wait_for("it to go on", lambda: "the job makes progress again" in training.watched)
    (training.folder / "end").touch()
    assert watch.wait(120) == 1, training.watched
    assert "the job has ended" in training.watched
