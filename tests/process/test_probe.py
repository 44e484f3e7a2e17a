"""Breakpoints, watches, caught exceptions and probes in jobs that nobody prepared, by the command line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakranks.rankset import RankSet
from support.consoles import without_waits
from support.targets import Interpreter, on_every_python
from support.waiting import DEADLINE_SECONDS, wait_for

from .attaching import threads_of
from .console_program import launcher_variables
from .terminals import BREAKRANKS, Place

PROGRAM = """\
import os, sys, time
rank = int(os.environ["RANK"])
def step(i):
    loss = 1.0 / (i + 1)
    if i % 2 == 0:
        try:
            raise KeyError(i)
        except KeyError:
            pass
    time.sleep(0.005)
    return loss
def train():
    total, i = 0.0, 0
    while not os.path.exists(sys.argv[1]):
        if i == 1000:
            i = 0
        total += step(i)
        i += 1
    return sorted(name for name in sys.modules if "breakranks" in name)
print("up", flush=True)
print(train(), sys.gettrace(), flush=True)
"""
AT = {text.strip(): number for number, text in enumerate(PROGRAM.splitlines(), 1)}
LOSS, RETURN, RAISE, DEF = AT["loss = 1.0 / (i + 1)"], AT["return loss"], AT["raise KeyError(i)"], AT["def step(i):"]


class Job(Place):
    """Two plain ranks in a loop; they end when they are told to, and say what they have found then."""

    def __init__(self, folder: Path, interpreter: Interpreter) -> None:
        super().__init__(folder, interpreter)
        self.file = folder / "loop.py"
        self.file.write_text(PROGRAM)
        self.ranks = [
            self.start(
                [interpreter.path, str(self.file), str(folder / "end")],
                launcher_variables(rank, 2),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        for one in self.ranks:
            assert one.stdout is not None and one.stdout.readline() == "up\n"

    def words(self, command: str, *words: str) -> list[str]:
        return [BREAKRANKS, command, "pid:" + ",".join(str(one.pid) for one in self.ranks), *words]

    def starts(self, command: str, *words: str) -> subprocess.Popen[str]:
        """A command under way."""
        return self.start(self.words(command, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def breakranks(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self.call(self.words(command, *words))

    def attach(self, *lines: str) -> str:
        done = self.breakranks("attach", "--no-stop", *(word for line in lines for word in ("-c", line)))
        assert done.stderr == ""
        return without_waits(done.stdout)

    def left(self) -> None:
        """Wait until nothing of ours is in it."""
        wait_for("the agents to leave", lambda: not any(self.run.iterdir()))
        wait_for("our threads to end", lambda: not any(threads_of(one.pid, "breakranks") for one in self.ranks))

    def ends(self) -> None:
        """With nothing of ours in it."""
        self.left()
        (self.folder / "end").touch()
        for one in self.ranks:
            assert one.communicate(timeout=DEADLINE_SECONDS)[0] == "[] None\n"
            assert one.returncode == 0
        assert list(self.run.iterdir()) == []


@pytest.fixture
def job(tmp_path: Path, interpreter: Interpreter) -> Iterator[Job]:
    with Job(tmp_path, interpreter) as job:
        yield job


@on_every_python
def test_a_probe_tells_what_ranks_have_and_is_gone(job: Job) -> None:
    done = job.breakranks(
        "probe", f"loop.py:{RETURN}", "--print", "type(loss), 0 * i", "--print", "rank", "--times", "3"
    )
    assert (done.returncode, done.stderr) == (0, "")
    # Where the machine is slow, what ranks tell of one hit comes one after the other.
    hits: dict[str, set[int]] = {}
    for number, ranks in re.findall(rf"^hit (\d)  ranks? (\S+)  loop.py:{RETURN} in step$", done.stdout, re.MULTILINE):
        hits.setdefault(number, set()).update(RankSet.parse(ranks))
    assert hits == {number: {0, 1} for number in "123"}
    values = re.findall(r"^\[([-\d]+)\] +(.+)$", done.stdout, re.MULTILINE)
    told = {(rank, value) for ranks, value in values for rank in RankSet.parse(ranks)}
    assert told == {(rank, value) for rank in (0, 1) for value in (str(rank), "(<class 'float'>, 0)")}, done.stdout
    job.ends()


def test_a_probe_with_a_condition_as_json(job: Job) -> None:
    words = ("--when", "i % 50 == 7", "--print", "i", "--times", "1", "--ranks", "1", "--json")
    done = job.breakranks("probe", f"{job.file}:{RETURN}", *words)
    (line,) = done.stdout.splitlines()
    told = json.loads(line)
    assert (told["schema"], told["hit"], told["ranks"], told["where"]["line"]) == (1, 1, "1", RETURN)
    (answer,) = told["values"][0]["answers"]
    assert int(answer["text"]) % 50 == 7
    assert done.returncode == 0
    job.ends()


@on_every_python
def test_a_probe_that_nobody_meets(job: Job) -> None:
    done = job.breakranks("probe", f"loop.py:{RETURN}", "--when", "i < 0", "--for", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"breakranks: no rank reached loop.py:{RETURN} with the condition true\n"
    probing = job.starts("probe", f"loop.py:{RETURN}", "--when", "nosuch", "--for", "600")
    assert probing.stderr is not None
    said = [probing.stderr.readline() for _ in range(2)]
    probing.send_signal(signal.SIGINT)
    said += [probing.communicate(timeout=DEADLINE_SECONDS)[1]]
    assert "".join(said).count("its condition raised NameError: name 'nosuch' is not defined") == 2  # once a rank
    job.ends()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("loop.py:9999",), "line 9999 of loop.py has no code; nearest lines with code:"),
        (("nosuch.py:3",), "no file nosuch.py is loaded"),
        (("loop.py",), "'loop.py' is not a line"),
        ((f"loop.py:{RETURN}", "--when", "i ="), "'i =' is not an expression"),
        ((f"loop.py:{RETURN}", "--times", "0"), "--times 0 is out of range"),
        ((f"loop.py:{RETURN}", "--ranks", "7"), "rank 7 is not in this job"),
    ],
)
def test_what_cannot_be_probed_is_said(job: Job, words: tuple[str, ...], said: str) -> None:
    done = job.breakranks("probe", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    job.ends()


@on_every_python
def test_a_breakpoint_with_a_condition_in_ranks_that_run(job: Job) -> None:
    shown = job.attach(f"b loop.py:{RETURN} if i % 2 == 1", "p i % 2", "c", "p i % 2", "b", "cl 1", "go")
    assert f"[0-1] Breakpoint 1 at {job.file}:{RETURN}" in shown
    assert shown.count("[0-1] > p i % 2\n[0-1] 1\n") == 2
    assert "stop only if i % 2 == 1" in shown
    job.ends()


@on_every_python
def test_a_breakpoint_in_some_ranks_once(job: Job) -> None:
    shown = job.attach(f"tbreak loop.py:{RETURN} on 1", "wait 90", "ranks", "rank 1 p rank", "b", "go")
    assert re.search(rf"rank 1 stopped, .+:{RETURN} in step \(breakpoint 1\)", shown)
    assert "[0-1; 0 inspected] > rank 1 p rank\n1\n" in shown
    assert "Num" not in shown.rpartition("> b\n")[2]  # it is gone
    job.ends()


@on_every_python
def test_a_function_by_name_and_until(job: Job) -> None:
    shown = job.attach("b step", "wait 90", "p 'in', i >= 0", "cl 1", f"until {RETURN}", "w", "go")
    assert re.search(rf"stopped, .+:{LOSS} in step", shown)
    assert "('in', True)" in shown
    assert f"> {job.file}({RETURN})step()" in shown
    job.ends()


@on_every_python
def test_an_exception_is_caught_where_it_is_raised(job: Job) -> None:
    shown = job.attach("catch LookupError", *["wait 90"] * 3, "w", "p i % 2", "catch", "catch off", "go")
    assert re.search(rf"stopped, .+:{RAISE} in step \(raised KeyError: \d+\)", shown)
    assert "[0-1] 0\n" in shown
    assert "[0-1] catching LookupError\n" in shown
    job.ends()


@on_every_python
def test_a_watched_value_stops_where_it_has_changed(job: Job) -> None:
    shown = job.attach(f"tbreak loop.py:{RETURN}", "wait 90", "u", "watch i", "c", "wait 90", "unwatch 2", "go")
    assert "[0-1] Watchpoint 2: i, now" in shown or "Watchpoint 2: i, now" in shown
    changes = re.findall(r"in train \(watchpoint 2: i: (\d+) → (\d+)\)", shown)
    assert changes and all(int(after) == int(before) + 1 for before, after in changes)
    job.ends()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("b loop.py:9999", "*** line 9999 of loop.py has no code; nearest lines with code:"),
        ("b nosuch.py:3", "*** no file nosuch.py is loaded in this process"),
        ("watch i =", "***"),
        ("n", "*** the rank is not stopped, so it cannot be stepped"),
    ],
)
def test_what_cannot_be_armed_is_said(job: Job, line: str, said: str) -> None:
    done = job.breakranks("attach", "--no-stop", "-c", line)
    assert said in done.stdout
    assert done.returncode == 1
    job.ends()


@on_every_python
def test_whoever_is_killed_leaves_no_breakpoint(job: Job) -> None:
    """GIVEN ranks that stop at a breakpoint again and again WHEN the console is killed THEN they run on for good."""
    console = job.starts("attach", "-c", f"b loop.py:{RETURN}", "-c", "wait 500")
    assert console.stdout is not None
    for line in console.stdout:
        if "wait 500" in line:
            break
    console.kill()
    console.wait()
    job.ends()
