"""Ranks with an agent need no permission to be traced: here tracing is refused, as the seccomp profile of a container
refuses it (support/no_ptrace.py)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from breakranks import __version__
from breakranks.backend.agent_payloads import ask_many
from breakranks.backend.agent_requests import ask_agents
from breakranks.backend.agent_stacks import AgentStacks
from breakranks.backend.found_agents import agents_of
from breakranks.inject.inject_errors import InjectError, InjectTimeout
from breakranks.observe import pyspy_parse
from breakranks.observe.pyspy_run import py_spy
from breakranks.rank_messages import PayloadEvent, PayloadRequest
from breakranks.snapshot import snapshot_file
from breakranks.snapshot.model import Call
from support.other_user import Nobody, nobody
from support.targets import EVERY, SOURCE, Interpreter, on, on_every_python
from support.waiting import free_port, wait_for

from .attaching import run, state_of
from .console_program import launcher_variables
from .terminals import BREAKRANKS, HERE, Place, line_of

PROGRAM = HERE / "preloaded_program.py"
NO_PTRACE = HERE.parent / "support" / "no_ptrace.py"
REFUSED = [sys.executable, str(NO_PTRACE)]
# Before, nothing reads a variable of a running function without a trace in it.
HAVE_VARIABLES = tuple(interpreter for interpreter in EVERY if interpreter.version >= (3, 12))
with_variables = on(*HAVE_VARIABLES)
NOTE = "not seen: C frames of ranks that may not be traced"


@pytest.fixture
def place(tmp_path: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with Place(tmp_path, interpreter) as place:
        monkeypatch.setenv("BREAKRANKS_RUN", str(place.run))
        yield place


class Ranks:
    """Two ranks that have come to their place."""

    def __init__(self, place: Place, mode: str, *more: str, env: Mapping[str, str] | None = None) -> None:
        self.folder = place.folder / "job"
        self.folder.mkdir()
        port = {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), **(env or {})}
        command = [place.interpreter.path, str(PROGRAM), mode, str(self.folder), *more]
        self.processes = [place.start(command, {**launcher_variables(rank, 2), **port}) for rank in range(2)]
        self.pids = [process.pid for process in self.processes]
        self.name = "pid:" + ",".join(map(str, self.pids))

    def wait_for(self, name: str, ranks: tuple[int, ...] = (0, 1)) -> None:
        for rank in ranks:
            wait_for(f"{name} of rank {rank}", (self.folder / f"{name}.{rank}").exists)

    def asleep(self) -> None:
        """Wait until the main threads wait."""
        for pid in self.pids:
            wait_for(f"{pid} to sleep", lambda pid=pid: state_of(pid) == "S")


def ready(place: Place, mode: str, *more: str, ranks: tuple[int, ...] = (0, 1)) -> Ranks:
    found = Ranks(place, mode, *more)
    found.wait_for("ready", ranks)
    found.asleep()
    return found


def shown(place: Place, *words: str, status: int = 0, refused: bool = True) -> str:
    done = run(place, [*(REFUSED if refused else []), BREAKRANKS, *words], status)
    return done.stdout + done.stderr


def without_times(text: str) -> str:
    return re.sub(r"up \S+ (s|min)", "up …", text)


# ---- what is seen


def test_tracing_is_refused(place: Place) -> None:
    """GIVEN ranks without an agent THEN nothing of them can be read: the other tests show what an agent gives."""
    ranks = ready(place, "wait", "bare")
    told = shown(place, "stacks", ranks.name, status=2)
    assert "[0-1] (2) no Python stack: permission to trace is denied" in told, told
    assert "permission to trace is denied" in shown(place, "eval", ranks.name, "1", status=2)


@on_every_python
def test_why_names_the_rank_with_a_deadlock(place: Place) -> None:
    ranks = ready(place, "deadlock")
    told = shown(place, "why", ranks.name, status=1)
    at = f"deadlock, preloaded_program.py:{line_of('deadlock', PROGRAM)}"
    assert f"rank 1 (pid {ranks.pids[1]}) has threads that wait for each other" in told, told
    assert f"MainThread waits for second (Lock) in {at}, held by thread other" in told, told
    assert "certain" in told and "permission" not in told and told.count(NOTE) == 1, told


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to hide files")
@on_every_python
def test_system_calls_come_from_the_agent_where_they_are_hidden(place: Place) -> None:
    """As under kernel.yama.ptrace_scope 1."""
    ranks = ready(place, "deadlock")
    hidden = [word for pid in ranks.pids for word in ("--hide", str(pid))]
    done = run(place, [*REFUSED, *hidden, BREAKRANKS, "why", ranks.name], 1)
    assert "held by thread other" in done.stdout and "waiting for a thread or lock (lock)" in done.stdout, done.stdout

    def calls() -> dict[str, Call] | None:
        file = str(place.folder / "hidden.snapshot")
        run(place, [*REFUSED, *hidden, BREAKRANKS, "snapshot", ranks.name, "-o", file])
        threads = snapshot_file.load(file).ranks[0].process.samples[-1].threads
        found = {thread.name: thread.call for thread in threads if thread.call is not None}
        return found if "sleeper" in found else None

    found = wait_for("the sleeper to sleep", calls)
    assert found["MainThread"].name == "futex", found
    assert found["sleeper"].left is not None and 3000 < found["sleeper"].left <= 3600, found


@on_every_python
def test_stacks_are_those_of_a_tracer(place: Place) -> None:
    ranks = ready(place, "deadlock")
    for words in (("stacks",), ("stacks", "--threads"), ("stacks", "--threads", "--full")):
        by_agent = shown(place, *words, ranks.name)
        assert "preloaded_program.py" in by_agent and "permission" not in by_agent, by_agent
        if "--full" not in words:  # which shows at which line the agent reads
            assert without_times(by_agent) == without_times(shown(place, *words, ranks.name, refused=False))


@on_every_python
def test_frames_and_variables_are_those_of_a_tracer(place: Place, interpreter: Interpreter) -> None:
    ranks = ready(place, "wait")
    pid = ranks.pids[0]
    by_agent = AgentStacks().read([pid], details=True)[pid].threads
    traced = pyspy_parse.sweep([pid])[pid].threads
    assert {thread.tid: (thread.name, thread.frames) for thread in by_agent if thread.tid == pid} == {
        thread.tid: (thread.name, thread.frames) for thread in traced if thread.tid == pid
    }
    assert {thread.name for thread in by_agent} == {"MainThread", "freer", "sleeper", "breakranks"}
    if interpreter not in HAVE_VARIABLES:
        assert not by_agent[0].hints, by_agent[0]
        return
    hints = {name: thread.hints for name, thread in (("agent", by_agent[0]), ("traced", traced[0]))}
    main = {thread.tid: thread for thread in traced}[pid]
    assert list(by_agent[0].hints) == list(main.hints), hints
    assert by_agent[0].hints["wait.step"] == main.hints["wait.step"] == "7"


@with_variables
def test_a_loop_is_seen_to_move(place: Place) -> None:
    ranks = ready(place, "turns")
    reader = AgentStacks()
    pid = ranks.pids[1]

    def marks() -> tuple[str, str]:
        main = next(thread for thread in reader.read([pid], details=True)[pid].threads if thread.tid == pid)
        return main.hints["turns.#"], main.hints["turns.step"]

    first = marks()
    wait_for("another step", lambda: marks()[1] != first[1])
    assert marks()[0] != first[0]


@on_every_python
def test_no_code_of_the_job_runs(place: Place, interpreter: Interpreter) -> None:
    ranks = ready(place, "odd")
    stacks = AgentStacks().read(ranks.pids, details=True)[ranks.pids[0]]
    main = next(thread for thread in stacks.threads if thread.tid == ranks.pids[0])
    assert main.hints.get("odd.step") == ("3" if interpreter in HAVE_VARIABLES else None), main
    ran = [path.read_text() for path in ranks.folder.glob("ran.*")]
    assert ran == []


@with_variables
def test_nothing_is_kept_of_a_running_function(place: Place) -> None:
    """GIVEN a function that has called locals() WHEN its variables are read THEN that dictionary stays as it was, and
    a value that the function drops is freed."""
    ranks = ready(place, "frees")
    main = AgentStacks().read(ranks.pids, details=True)[ranks.pids[0]].threads[0]
    assert "frees.step" in main.hints, main
    (ranks.folder / "drop").touch()
    ranks.wait_for("dropped")
    assert (ranks.folder / "dropped.0").read_text() == "True"
    ranks.wait_for("freed")


def test_a_thousand_threads_and_a_deep_recursion(place: Place) -> None:
    ranks = ready(place, "many")
    stacks = AgentStacks().read(ranks.pids, details=True)
    for pid in ranks.pids:
        threads = stacks[pid].threads
        assert stacks[pid].problem is None and len(threads) >= 1000, stacks[pid].problem
        assert len({thread.tid for thread in threads}) == len(threads) and all(thread.tid for thread in threads)
        main = next(thread for thread in threads if thread.tid == pid)
        assert sum(frame.function == "recurse" for frame in main.frames) == 1001


# ---- what cannot be seen


def test_an_agent_that_cannot_run_is_told(place: Place) -> None:
    """GIVEN ranks that sleep with the GIL held THEN it is told as for a rank that cannot be read."""
    ranks = ready(place, "gil")
    told = shown(place, "stacks", ranks.name, status=2)
    assert re.search(r"\[0-1\] \(2\) no Python stack: its agent did not answer within 5 s, and permission to", told), (
        told
    )
    assert "GIL" in told and NOTE not in told


def test_a_stopped_rank_is_told(place: Place) -> None:
    ranks = ready(place, "wait")
    os.kill(ranks.pids[1], signal.SIGSTOP)
    wait_for("rank 1 to stop", lambda: state_of(ranks.pids[1]) == "T")
    found = AgentStacks().read(ranks.pids, details=False)
    assert found[ranks.pids[0]].problem is None and found[ranks.pids[0]].threads
    problem = found[ranks.pids[1]].problem
    assert problem is not None and problem.what == "it is stopped, so its agent cannot answer"


def test_a_request_that_was_given_up_does_nothing_later(place: Place) -> None:
    ranks = ready(place, "wait")
    pid = ranks.pids[0]
    os.kill(pid, signal.SIGSTOP)
    wait_for("it to stop", lambda: state_of(pid) == "T")
    mark = ranks.folder / "mark"
    answer = evaluated(pid, f"open({str(mark)!r}, 'w').close()", deadline=0.5)
    assert isinstance(answer, InjectTimeout), answer
    os.kill(pid, signal.SIGCONT)
    wait_for("it to answer", lambda: AgentStacks().read([pid], details=False)[pid].problem is None)
    assert isinstance(evaluated(pid, "1", deadline=60.0), bytes)
    assert not mark.exists()
    assert isinstance(evaluated(pid, f"open({str(mark)!r}, 'w').close()", deadline=60.0), bytes)
    assert mark.exists()


def test_a_large_answer_comes_at_once(place: Place) -> None:
    """Its client need not read as fast as the agent sends."""
    ranks = ready(place, "wait")
    source = "def answer(given): return b'x' * given['size']"
    request = PayloadRequest(id=1, source=source, arguments='{"size": 10000000}')
    replies = ask_agents(agents_of(ranks.pids), dict.fromkeys(ranks.pids, request), deadline=120.0)
    for pid in ranks.pids:
        event = replies[pid].event
        assert isinstance(event, PayloadEvent) and event.error is None and event.answer == b"x" * 10_000_000, event


def evaluated(pid: int, source: str, deadline: float) -> bytes | InjectError:
    given = {"source": source, "frame": None, "thread": None, "effects": True, "takers": [0]}
    arguments = {"module": "breakranks.rank.eval_entry", "version": __version__, "given": given}
    return ask_many([pid], "load_modules", arguments, deadline=deadline)[pid]


# ---- what is done


@on_every_python
def test_it_can_be_asked_stopped_and_stepped(place: Place) -> None:
    ranks = ready(place, "turns")
    prefix = f"in turns, {PROGRAM}:"
    assert prefix in (told := shown(place, "eval", ranks.name, "secret")) and "[0-1] 's3cret'" in told, told
    line = line_of("turns", PROGRAM)
    commands = (f"tbreak {PROGRAM}:{line}", "c", "w", "p secret", "go")
    told = shown(place, "attach", ranks.name, *(word for command in commands for word in ("-c", command)))
    assert f"> {PROGRAM}({line})turns()" in told and "[0-1] 's3cret'" in told, told
    told = shown(place, "probe", ranks.name, f"{PROGRAM}:{line}", "--print", "secret", "--times", "1")
    assert "'s3cret'" in told, told
    (ranks.folder / "end").touch()
    assert [process.wait(120) for process in ranks.processes] == [0, 0]


def test_a_blocked_rank_is_inspected(place: Place) -> None:
    ranks = ready(place, "deadlock")
    told = shown(place, "attach", ranks.name, "--rank", "1", "-c", "w")
    assert f"({line_of('deadlock', PROGRAM)})deadlock()" in told, told


@on_every_python
def test_a_breakpoint_and_its_console(place: Place) -> None:
    ranks = ready(place, "stops")
    assert "[0-1] 2" in shown(place, "eval", ranks.name, "1 + 1")
    (ranks.folder / "go").touch()
    told = shown(place, "console", ranks.name, "-c", "p value", "-c", "go")
    assert "\n40\n" in told, told
    ranks.wait_for("value")


# ---- with torch, and as another user


def test_the_recorder_of_a_barrier_is_read(place: Place) -> None:
    ranks = Ranks(place, "torch")
    ranks.wait_for("ready")
    ranks.asleep()
    found = json.loads(shown(place, "why", "--json", ranks.name, status=1))
    assert found["verdict"]["culprits"] == "1" and found["verdict"]["victims"] == "0", found["verdict"]
    told = shown(place, "collectives", ranks.name, status=1)
    assert "barrier" in told.lower() and "permission" not in told, told


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_user_without_privileges(place: Place) -> None:
    ended = []
    with nobody() as other:
        shutil.copy(py_spy(), other.python.parent / "py-spy")
        shutil.copy(PROGRAM, other.folder)
        shutil.copy(NO_PTRACE, other.folder)
        try:
            ranks = _ranks_of(other, place)
            pids = "pid:" + ",".join(str(process.pid) for process in ranks)
            ended = ranks
            for rank in range(2):
                wait_for("the ranks", (other.own / f"ready.{rank}").exists)
            command = [str(other.folder / NO_PTRACE.name), str(other.python), "-m", "breakranks"]
            done = other.run([*command, "why", pids], 120)
            assert done.returncode == 1 and "held by thread other" in done.stdout, (done.stdout, done.stderr)
            assert "permission" not in done.stdout and done.stdout.count(NOTE) == 1, done.stdout
            done = other.run([*command, "eval", pids, "RANK"], 120)
            assert done.returncode == 0 and "max 1 (rank 1)" in done.stdout, (done.stdout, done.stderr)
        finally:
            for process in ended:
                process.kill()
                process.wait(120)


def _ranks_of(other: Nobody, place: Place) -> list[subprocess.Popen[Any]]:
    command = other.command([str(other.folder / PROGRAM.name), "deadlock", str(other.own)])
    port = {"MASTER_PORT": str(free_port())}
    return [
        place.start(command, {**other.environ(), **launcher_variables(rank, 2), **port}, cwd="/") for rank in range(2)
    ]
