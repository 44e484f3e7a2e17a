"""A child that a job forks while a debugger is in it never stops, waits or traces; nor does the job itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .attaching import Target, answers, attach, attaching, files_of
from .terminals import DEADLINE, HERE, Place, line_of, wait_for

PROGRAM = HERE / "fork_program.py"
SOURCE = HERE.parents[1] / "src"
QUIET = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # of fork in a process with threads
WAYS = ("fork", "pty", "subprocess", "multiprocessing")  # the lines that fork


def interpreters() -> dict[str, str]:
    """The Pythons that a job may run on, by version."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    for version in ("3.10", "3.11", "3.12", "3.13"):
        for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")):
            found.setdefault(version, str(path))
    return found


PYTHONS = interpreters()
everywhere = pytest.mark.parametrize("python", PYTHONS)
# One that is traced by sys.settrace, and one that is by sys.monitoring.
either = pytest.mark.parametrize("python", [version for version in ("3.11", "3.13") if version in PYTHONS])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path) as place:
        yield place
        wait_for("the folder to be empty", lambda: files_of(place) == [] or None)


def started(place: Place, mode: str, python: str) -> Target:
    env = {**QUIET, "PYTHONPATH": str(SOURCE)} if mode == "calls" else QUIET
    return Target(place, mode, executable=PYTHONS[python], env=env, program=PROGRAM)


def line(mark: str) -> str:
    return f"{PROGRAM}:{line_of(mark, PROGRAM)}"


def reads(target: Target) -> bool:
    """Whether it waits for its byte."""
    return Path(f"/proc/{target.pid}/syscall").read_text().startswith("0 ")


@everywhere
def test_a_rank_that_is_stepped_over_a_fork(place: Place, python: str) -> None:
    """WHEN a thread is stepped over the line that forks THEN it stops after it, and the child does not."""
    for step in ("n", "s"):
        target = started(place, "each", python)
        commands = [command for way in WAYS for command in (f"tbreak {line(way)}", "c", step)]
        shown = attach(place, target, "p ready('now')", *commands, "go")
        assert all(f"{way}()\n-> if pid == 0:" in shown for way in ("by_fork", "by_pty")), shown
        target.ends()


@either
def test_forks_of_one_thread_while_another_is_stopped(place: Place, python: str) -> None:
    target = started(place, "forks", python)
    shown = attach(place, target, "p forked(5)", "n", "p forked(5)", "n", "go", options=["--thread", "spinner"])
    assert "in thread spinner" in shown and answers(shown)["p forked(5)"].startswith("True"), shown
    target.left()
    target.ends()


@either
def test_children_come_to_what_is_armed_in_their_parent(place: Place, python: str) -> None:
    target = started(place, "forks", python)
    commands = [f"b {line('looked at')}", "catch Raised", "p forked(9)", "go"]
    shown = attach(place, target, *commands, options=["--thread", "spinner"])
    assert answers(shown)["p forked(9)"].startswith("True"), shown
    target.left()
    target.ends()


@either
def test_a_rank_that_is_to_stop_forks_first(place: Place, python: str) -> None:
    """GIVEN a rank that is blocked within a fork and is to stop WHEN the fork returns THEN the child does not stop."""
    target = started(place, "waits", python)
    (target.folder / "now").touch()
    wait_for("it to be blocked", lambda: reads(target))
    shown = attach(place, target, "interrupt", "p release()", "wait 60", "p pid > 0", "go", options=["--no-stop"])
    assert answers(shown)["p pid > 0"].startswith("True"), shown
    target.left()
    target.ends()


@either
def test_the_console_is_killed_while_a_rank_is_stepped_over_a_fork(place: Place, python: str) -> None:
    target = started(place, "waits", python)
    console = attaching(place, target, f"b {line('fork')}", "p ready('now')", "c", "n")
    assert console.stdout is not None
    for shown in console.stdout:
        if "> n" in shown:
            break
    wait_for("it to be blocked", lambda: reads(target))
    console.kill()
    target.left()
    (target.folder / "byte").write_text("x")
    target.ends()


@either
def test_a_program_that_calls_for_its_stop(tmp_path: Path, python: str) -> None:
    with Place(tmp_path) as place:
        target = started(place, "calls", python)
        commands = [command for way in ("fork", "multiprocessing") for command in (f"tbreak {line(way)}", "c", "n")]
        attach(place, target, *commands, "go")
        assert target.process.wait(DEADLINE) == 0


@either
def test_a_child_that_is_made_at_a_prompt_goes_on(place: Place, python: str) -> None:
    target = started(place, "evaluates", python)
    shown = attach(place, target, "p __import__('os').fork()", "go")
    assert answers(shown)["p __import__('os').fork()"].strip().isdigit(), shown
    target.left()
    target.ends()


@either
def test_who_is_at_a_prompt_goes_on_when_the_agent_has_gone(place: Place, python: str) -> None:
    """WHEN the thread that serves consoles ends, whatever for THEN the stopped one does not wait for it."""
    target = started(place, "evaluates", python)
    end = (
        "import ctypes, threading; ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(next("
        "one.ident for one in threading.enumerate() if one.name == 'breakranks')), ctypes.py_object(SystemExit))"
    )
    console = attaching(place, target, f"!{end}; ready('asked')")
    wait_for("the agent to be asked to end", lambda: target.made("asked"))
    target.left()
    target.ends()
    console.kill()


@either
def test_a_rank_that_imports_what_the_agent_needs_too(place: Place, python: str) -> None:
    """GIVEN a thread that is importing WHEN an agent arrives that needs the same module THEN both come to their end."""
    target = started(place, "imports", python)
    shown = attach(place, target, "p MODE", "go")
    assert answers(shown)["p MODE"].startswith("'imports'"), shown
    target.left()
    target.ends()


INTERRUPTED = """
import _thread, os, signal, sys, threading, time
from breakranks.rank import fork_hooks
fork_hooks.state()["lock"].acquire()  # as while a thread of ours imports
main = _thread.get_ident()
def interrupt():
    until = time.monotonic() + 1.9  # a fork waits for two seconds
    while sys._current_frames()[main].f_code.co_name != "before" and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted")
"""


@everywhere
def test_a_fork_that_waits_for_us_loses_no_interrupt(place: Place, python: str) -> None:
    """GIVEN a fork that waits for a thread of ours WHEN Ctrl-C is pressed THEN the program has it, and nothing else."""
    done = place.call([PYTHONS[python], "-c", INTERRUPTED], {**QUIET, "PYTHONPATH": str(SOURCE)})
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


IMPORTS = """
import os, sys, threading, time
from breakranks.rank.fork_hooks import ForksPaused
folder = sys.argv[1]
sys.path.insert(0, folder)
with open(folder + "/slow_one.py", "w") as file:
    file.write("import time; entered = True; time.sleep(0.3)")
def ours():
    with ForksPaused(), ForksPaused():
        import slow_one
thread = threading.Thread(target=ours)
thread.start()
while "slow_one" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    import slow_one
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@everywhere
def test_a_child_can_import_what_a_thread_of_ours_was_importing(place: Place, python: str) -> None:
    done = place.call([PYTHONS[python], "-c", IMPORTS, str(place.folder)], {**QUIET, "PYTHONPATH": str(SOURCE)})
    assert (done.stdout, done.stderr, done.returncode) == ("7\n", "", 0)
