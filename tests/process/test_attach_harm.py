"""What goes wrong with an attach: it is killed, refused, comes twice, asks for too much. The program goes on."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.other_user import nobody
from support.targets import THIS, Interpreter, on_every_python, on_every_python_with
from support.waiting import DEADLINE_SECONDS as DEADLINE
from support.waiting import wait_for

from .attaching import PROGRAM, Target, answers, attach, attaching, files_of, refused, run, state_of, words_of
from .terminals import BREAKRANKS, Place, line_of


@pytest.fixture
def place(tmp_path: Path, interpreter: Interpreter) -> Iterator[Place]:
    with Place(tmp_path, interpreter) as place:
        yield place
        wait_for("the folder to be empty", lambda: files_of(place) == [] or None)


# ---- killed

ARMED = f"b {PROGRAM}:{line_of('mix', PROGRAM)}"
SCRIPTS = (["w", "n", "s", "n", "n", "n", "s"], ["p MODE"] * 8, [ARMED, "c", "c", "c", "c"], ["interrupt", "go"] * 4)


@on_every_python_with("mode", ["busy", "threads"], core=["threads"])
def test_killed_at_any_moment_it_leaves_the_program_running(place: Place, mode: str, interpreter: Interpreter) -> None:
    """A few times; scripts/attach-cycles does it 200 times. A while later nothing of ours is there."""
    moments = random.Random(5)
    target = Target(place, mode)
    for turn in range(8 if interpreter == THIS else 4):
        process = attaching(place, target, *SCRIPTS[turn % len(SCRIPTS)])
        time.sleep(moments.uniform(0.1, 1.2))
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
        assert target.process.poll() is None
        wait_for("it to go on", lambda: target.state in "RS")  # on a busy disk it may be in D for a moment
    target.left()
    attach(place, target, "n", "go")  # it can be attached to again
    target.left()
    assert target.ends() == target.untouched()


@on_every_python
def test_a_terminal_that_closes_lets_the_program_go(place: Place) -> None:
    target = Target(place, "busy")
    terminal = place.terminal([BREAKRANKS, "attach", target.name])
    terminal.prompt()
    terminal.ask(ARMED)
    terminal.close()
    target.left()
    assert target.ends() == target.untouched()


# ---- more than one


@on_every_python
def test_two_at_once(place: Place) -> None:
    """Both get in; the program goes on when both have left."""
    target = Target(place, "busy")
    first = place.terminal([BREAKRANKS, "attach", target.name])
    second = place.terminal([BREAKRANKS, "attach", target.name])
    first.prompt()
    opening = second.prompt()
    assert "stopped, " in opening
    assert (first.ask("p MODE"), second.ask("p MODE")) == ("'busy'", "'busy'")
    first.keys("q\r")
    assert first.ends() == 0
    assert second.ask("n").startswith(("> ", "--Call--", "--Return--"))
    second.keys("q\r")
    assert second.ends() == 0
    target.left()
    assert target.ends() == target.untouched()


def test_many_in_a_row_and_at_once(place: Place) -> None:
    """Who comes while the last one leaves gets in too, or is told why not."""
    target = Target(place, "busy")
    processes = []
    for _ in range(4):
        options = ["--no-stop", "--timeout", str(DEADLINE)]  # eight at once: none of them is fast
        processes += [attaching(place, target, "p MODE", options=options) for _ in range(2)]
        time.sleep(0.2)
    for process in processes:
        shown = process.communicate(timeout=DEADLINE)[0]
        refused = "another breakranks is injecting" in shown or "has not been unloaded yet" in shown
        assert (process.returncode == 0 and "'busy'" in shown) or refused, shown
    target.left()
    assert target.ends() == target.untouched()


def test_who_asks_while_another_is_answered_waits(place: Place) -> None:
    """GIVEN two consoles that look WHEN one asks for what takes a second THEN the other's answer comes after it."""
    target = Target(place, "busy")
    first, second = (place.terminal([BREAKRANKS, "attach", target.name, "--no-stop"]) for _ in range(2))
    first.prompt()
    second.prompt()
    begun = target.folder / "begun"
    first.keys(f"p open({str(begun)!r}, 'w').close() or __import__('time').sleep(1)\r")
    wait_for("the first to be asked", lambda: begun.exists() or None)
    assert second.ask("p MODE").endswith("'busy'")
    for terminal in (first, second):
        terminal.keys("q\r")
        assert terminal.ends() == 0
    target.left()
    assert target.ends() == target.untouched()


# ---- refused


@on_every_python
def test_a_process_that_ends_meanwhile(place: Place) -> None:
    """GIVEN programs that end at any moment of an attach THEN it says so, or had its answer; never a traceback."""
    moments = random.Random(7)
    for _ in range(4):
        target = Target(place, "busy")
        process = attaching(place, target, "w", "n", "p MODE", "n", "go")
        time.sleep(moments.uniform(0.05, 1.0))
        if moments.random() < 0.5:
            target.process.kill()
        else:
            target.wake()
        shown = process.communicate(timeout=DEADLINE)[0]
        assert "Traceback" not in shown and process.returncode in (0, 1, 2), shown
        assert process.returncode != 2 or re.search(r"breakranks: .+\n  \S", shown), shown
        assert target.process.wait(DEADLINE) in (0, -signal.SIGKILL)
    # One that was killed leaves its files; the next attach takes them away.
    with_files = Target(place, "busy")
    attach(place, with_files, "p MODE", options=["--no-stop"])
    with_files.left()
    with_files.ends()
    for path in place.run.iterdir():
        shutil.rmtree(path)


def test_what_is_no_python_of_ours(place: Place) -> None:
    sleep = place.start(["sleep", "600"])
    said = refused(place, f"pid:{sleep.pid}")
    assert "Python" in said
    old = sorted(Path.home().joinpath(".pyenv/versions").glob("3.9.*/bin/python3.9")) if os.geteuid() == 0 else []
    for path in old[:1]:
        words = [str(path), "-c", "print(1, flush=True); input()"]
        process = place.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        said = refused(place, f"pid:{process.pid}")
        assert "3.9" in said and "3.10" in said, said
        assert process.poll() is None
    assert "4194301" in refused(place, "pid:4194301")
    assert sleep.poll() is None


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace here")
def test_a_process_that_is_traced(place: Place) -> None:
    target = Target(place, "busy")
    tracer = place.start(["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(target.pid)])
    wait_for("strace", lambda: f"TracerPid:\t{tracer.pid}\n" in Path(f"/proc/{target.pid}/status").read_text())
    assert f"traced by process {tracer.pid}" in refused(place, target)
    tracer.terminate()
    tracer.wait()
    wait_for("strace to have gone", lambda: "TracerPid:\t0\n" in Path(f"/proc/{target.pid}/status").read_text())
    attach(place, target, "p MODE", "go")
    target.left()
    target.ends()


def test_a_process_that_is_stopped(place: Place) -> None:
    target = Target(place, "busy")
    target.process.send_signal(signal.SIGSTOP)
    wait_for("its stop", lambda: target.state == "T")
    assert "kill -CONT" in refused(place, target)
    assert target.state == "T"
    target.process.send_signal(signal.SIGCONT)
    target.ends()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user(place: Place) -> None:
    """GIVEN root's process THEN nobody cannot get in, and is told why."""
    target = Target(place, "busy")
    with nobody() as other:
        done = other.run(["-m", "breakranks", *words_of(target, ["w"], [])[1:]], DEADLINE)
    assert done.returncode == 2 and "belongs to user root" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    target.ends()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop what it may")
def test_ptrace_refused(place: Place) -> None:
    """GIVEN a process of the same user that may not be traced THEN the remedy is said."""
    code = "import ctypes; ctypes.CDLL(None).prctl(4, 0); print(1, flush=True); input()"
    closed = place.start([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert closed.stdout is not None and closed.stdout.readline()
    words = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    done = run(place, [*words, *words_of(f"pid:{closed.pid}", ["w"], [])], 2)
    assert re.search(r"breakranks: .+\n  \S", done.stderr), done.stderr
    assert closed.poll() is None


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can make a namespace")
@on_every_python
def test_a_container(place: Place) -> None:
    """GIVEN a program with pids, mounts, /dev/shm and /tmp of its own THEN it is asked, stopped and stepped."""
    inside = place.folder / "inside"
    inside.mkdir()
    program = shutil.copy(PROGRAM, inside)
    command = shlex.join([os.path.realpath(place.interpreter.path), str(program), "busy", str(inside)])
    start = f"mount -t tmpfs none /dev/shm; mount -t tmpfs none /var/tmp; exec {command}"
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", start]
    own = str(place.folder / "own")
    process = place.start(words, {"BREAKRANKS_RUN": own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for("it to be ready", lambda: (inside / "ready").exists())
    pid = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    for _ in range(2):
        shown = attach(place, f"pid:{pid}", "p MODE", "n", "go")
        assert answers(shown)["p MODE"].startswith("'busy'") and "rank 0 resumes" in shown
    wait_for("our threads to have gone", lambda: len(os.listdir(f"/proc/{pid}/task")) == 1)
    (inside / "end").touch()
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, "") and out.startswith("result ")
    assert not os.path.exists(own) or list(Path(own).rglob("*")) == []


# ---- what is asked


@on_every_python
def test_expressions_that_raise_block_and_flood(place: Place) -> None:
    target = Target(place, "lock")
    deep = "(lambda f: f(f))(lambda f: f(f))"
    commands = {
        "p 1/0": "ZeroDivisionError",
        "p " + deep: "RecursionError",
        "p exit(3)": "",
        "p secret.nothing": "AttributeError",
        "!raise SystemExit(4)": "SystemExit",
        "p (": "SyntaxError",
        "p 'x' * 10**7": "",
        "!print('said')": "said",
        "p print('x' * 10**6)": "",
    }
    shown = attach(place, target, *commands, status=1)
    found = answers(shown)
    for command, expected in commands.items():
        assert expected in found[command], (command, found[command])
    assert len(shown) < 700_000
    target.left()
    assert target.ends() == target.untouched()  # nothing of what was printed is in its output


@pytest.mark.parametrize("stopped", [False, True], ids=["inspected", "stopped"])
@pytest.mark.parametrize(
    "blocks", ["__import__('time').sleep(1e6)", "__import__('threading').Event().wait()", "[0 for _ in iter(int, 1)]"]
)
def test_an_expression_that_blocks_for_ever(place: Place, stopped: bool, blocks: str) -> None:
    """It is given up, and said so; the program goes on."""
    target = Target(place, "busy")
    options = ["--timeout", "2", *([] if stopped else ["--no-stop"])]
    shown = attach(place, target, f"p {blocks}", options=options, status=1)
    assert "rank 0 has not answered yet" in shown, shown
    if stopped or "Event" not in blocks:
        wait_for("it to go on", lambda: state_of(target.pid) in "RS")
    assert target.ends() == target.untouched()


def test_an_expression_that_kills(place: Place) -> None:
    """It is the asker's own doing; it is said that the rank has ended."""
    target = Target(place, "busy")
    shown = attach(place, target, "p __import__('os')._exit(5)", options=["--no-stop"], status=1)
    assert "rank 0 has ended" in shown
    assert target.process.wait(DEADLINE) == 5
    other = Target(place, "lock")
    attach(place, other, "w")
    other.left()
    for path in place.run.iterdir():
        shutil.rmtree(path)
