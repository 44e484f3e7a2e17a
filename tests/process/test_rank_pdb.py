"""pdb in a rank, asked over its socket: after an interrupt, and with commands on a breakpoint."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakranks.console.debug_session import DebugSession
from breakranks.rank_messages import InterruptRequest
from breakranks.rankset import RankSet
from support.processes import Processes
from support.targets import SOURCE, Interpreter, on_every_python
from support.waiting import DEADLINE_SECONDS as DEADLINE

PROGRAM = Path(__file__).parent / "rank_pdb_program.py"
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "2123"}
ONLY = RankSet([0])


class Job:
    """One rank that stops at once, and a session with it."""

    def __init__(self, processes: Processes, interpreter: Interpreter) -> None:
        self.process = processes.start(
            [interpreter.path, str(PROGRAM)],
            {**RANK, "BREAKRANKS_RUN": str(processes.folder), "PYTHONPATH": str(SOURCE)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.session = DebugSession()

    def ask(self, line: str, *, interrupt: bool = False) -> str:
        pending = self.session.start(line, ONLY)
        if interrupt:
            assert self.session.wait(self.evaluates, DEADLINE)
            self.session.ask(InterruptRequest(), ONLY)
        assert self.session.wait(lambda: not pending.awaited, DEADLINE), f"{line} is not answered"
        return pending.answers[0].text

    def evaluates(self) -> bool:
        """Whether it is at what it was asked for, and at the heart of it."""
        where = self.session.ask_where(ONLY, DEADLINE)[0]
        return where.state == "busy" and "__repr__" in str(where)

    def stops(self) -> None:
        assert self.session.wait(lambda: bool(self.session.stopped), DEADLINE)

    def ends(self) -> tuple[int, str]:
        self.session.close(armed=True)
        output, _ = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, output


@pytest.fixture
def job(tmp_path: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("BREAKRANKS_RUN", str(tmp_path))
    with Processes(tmp_path) as processes:
        made = Job(processes, interpreter)
        made.stops()
        yield made


@on_every_python
def test_a_rank_whose_evaluation_was_interrupted_steps_and_ends_as_ever(job: Job) -> None:
    for _ in range(2):
        assert "KeyboardInterrupt" in job.ask("p slow", interrupt=True)
    assert job.ask("p 2") == "2\n"
    # Over a call and into one: a look for an exception that was taken back spun there for ever, on 3.11.
    assert "first = count(1)" in job.ask("n")
    assert "def count" in job.ask("s")
    assert "return sum" in job.ask("n")
    assert "Return" in job.ask("r")
    assert "second = count(2)" in job.ask("n")
    job.ask("c")
    # Not -2: a KeyboardInterrupt that leaves an eval of text marks the interpreter, caught or not.
    assert job.ends() == (0, "RESULT 15\n")


@on_every_python
def test_commands_of_a_breakpoint_run_there_and_are_seen(job: Job) -> None:
    """Before 3.13 pdb runs them, and its prompt after them, past the place where it else stops."""
    line = next(at for at, text in enumerate(PROGRAM.read_text().splitlines(), 1) if "return sum" in text)
    for text in (f"b {line}", "commands 1", "p start * 100", "end"):
        job.ask(text)
    job.ask("c")
    job.stops()
    where = job.session.state(0).where
    assert where is not None and where.line == line
    assert "100" in "".join(event.text for event in job.session.take_events())
    for text in ("commands 1", "p start * 1000", "c"):
        job.ask(text)
    job.ask("c")
    assert job.session.wait(lambda: not job.session.ranks, DEADLINE)
    assert "2000" in "".join(event.text for event in job.session.events)
    assert job.ends() == (0, "RESULT 15\n")


@on_every_python
def test_a_rank_that_dies_before_a_request_is_said_to_be_gone(job: Job) -> None:
    """GIVEN a rank that was killed WHEN a line is sent before its end was noticed THEN nothing waits for its answer."""
    job.process.kill()
    job.process.wait(DEADLINE)
    pending = job.session.start("p 1", ONLY)
    assert job.session.wait(lambda: not pending.awaited, DEADLINE), pending
    assert pending.gone == {0} and [event.what for event in job.session.take_events()][-1:] == ["gone"]
