"""Into programs that nobody prepared, blocked or not: asked, stopped, stepped, let go; they end as if never touched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.consoles import without_waits
from support.targets import EVERY, Interpreter, on, on_every_python, on_every_python_with
from support.waiting import DEADLINE_SECONDS as DEADLINE
from support.waiting import wait_for

from .attaching import (
    PROGRAM,
    Target,
    answers,
    attach,
    attaching,
    fds_of,
    files_of,
    refused,
    rss_of,
    run,
    threads_of,
    words_of,
)
from .terminals import BREAKRANKS, CTRL_C, Place, line_of, source_of


@pytest.fixture
def place(tmp_path: Path, interpreter: Interpreter) -> Iterator[Place]:
    with Place(tmp_path, interpreter) as place:
        yield place
        # Whatever a test did: nothing of ours is left where agents meet, once the programs have ended.
        wait_for("the folder to be empty", lambda: files_of(place) == [] or None)


def at(mark: str, function: str) -> str:
    return f"{PROGRAM}:{line_of(mark, PROGRAM)} in {function}"


def pdb_at(mark: str, function: str) -> str:
    return f"> {PROGRAM}({line_of(mark, PROGRAM)}){function}()\n-> {source_of(mark, PROGRAM)}"


@on_every_python
def test_what_injected_code_raises_is_not_caught(place: Place) -> None:
    """GIVEN a console that stops at every exception WHEN code is injected by another command THEN no thread stops."""
    target = Target(place, "busy")
    console = place.terminal(words_of(target, (), ()))
    console.prompt()
    assert console.ask("catch Exception") == "catching Exception"
    assert "resumes" in console.ask("go")
    ask = [BREAKRANKS, "eval", "--timeout", str(DEADLINE), target.name]
    assert "'busy'" in run(place, [*ask, "MODE"]).stdout
    assert "ZeroDivisionError" in run(place, [*ask, "1 // 0"], 1).stdout
    assert "stopped" not in console.ask("ranks")
    console.keys("quit\r")
    target.left()
    assert target.ends() == target.untouched()


# ---- blocked in C

BLOCKED = {
    "sleep": ("['sleep', 1]", "<class 'list'>"),
    "lock": ("{'lock': 2}", "<class 'dict'>"),
    "pipe": ("'pipe'", "<class 'str'>"),
    "c_free": ("4", "<class 'int'>"),
}


@on_every_python_with("mode", BLOCKED, core=["lock"])
def test_a_rank_that_is_blocked_is_inspected_and_stops_when_it_comes_back(place: Place, mode: str) -> None:
    """GIVEN a program blocked in C WHEN asked THEN it answers where it stands; asked to stop, it stops afterwards."""
    target = Target(place, mode)
    value, kind = BLOCKED[mode]
    main = f"{PROGRAM}({line_of('main', PROGRAM)})<module>()\n-> {source_of('main', PROGRAM)}"
    asked = {
        "w": f"  {main}\n{pdb_at(mode, mode)}",
        "up": f"> {main}",
        "p MODE": repr(mode),
        "down": pdb_at(mode, mode),
        "a": "",
        "p secret": value,
        "pp [secret]": f"[{value}]",
        "whatis secret": kind,
        "len(str(secret)) + 1": str(len(str(eval(value))) + 1),
        "!more = len(str(secret))": "",
        "p nothing": "*** NameError: name 'nothing' is not defined",
        "p 1/0": "*** ZeroDivisionError: division by zero",
        "r": "*** the rank is not stopped, so it cannot be stepped; `interrupt` stops it at its next line",
    }
    shown = attach(place, target, *asked, "locals", "threads", "l", status=1)  # two answers were errors
    found = answers(shown)
    assert found[""] == f"rank 0: blocked at {at(mode, mode)} (inspect only)"
    assert "[0 inspected] > w" in shown
    assert {command: found[command] for command in asked} == asked
    assert "secret = " in found["locals"]
    assert re.search(rf"^-> MainThread  {mode}, {PROGRAM}:{line_of(mode, PROGRAM)}$", found["threads"], re.MULTILINE)
    assert f"{line_of(mode, PROGRAM):3}  ->\t{'    '}".expandtabs() in found["l"]
    wait = f"wait {DEADLINE:.0f}"
    process = attaching(place, target, "interrupt", wait, "n", "s", "go")
    shown = ""
    for line in process.stdout:  # type: ignore[union-attr]
        shown += line
        if line.startswith("[0 inspected] > wait"):  # so the interrupt has been asked for
            target.wake()
    assert process.wait(DEADLINE) == 0, shown
    found = answers(shown)
    assert found["interrupt"].endswith("it stops when it returns to Python"), shown
    assert "rank 0 stopped, " in found[wait] and "[0] > n" in shown, shown
    assert found["go"] == "rank 0 resumes"
    target.left()
    assert target.ends() == target.untouched()


@on_every_python
def test_a_rank_that_holds_the_gil_in_c_gives_its_native_stack_and_the_reason(place: Place) -> None:
    """GIVEN a program that is blocked in C, and holds the GIL."""
    target = Target(place, "c_held")
    done = run(place, words_of(target, ["w"], []), 2)
    assert re.search(r"breakranks: cannot attach to any rank: .* holds the GIL", done.stderr), done.stderr
    assert "read" in done.stdout and "c_held" in done.stdout, done.stdout
    assert target.ends() == target.untouched()


# ---- busy

ASKED = ("w", "up", "down", "l", "ll", "a", "locals", "p MODE", "pp [MODE]", "whatis MODE", "threads", "n", "s", "n")
QUIET = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # of fork, since there is a second thread


BUSY = ["busy", "generator", "threads", "forks", "subinterpreter", "renamed", "no_threading", "sigint"]


@on_every_python_with("mode", BUSY, core=["threads", "forks", "subinterpreter", "no_threading"])
def test_a_busy_rank_is_stopped_stepped_and_let_go(place: Place, mode: str) -> None:
    """GIVEN a program at work WHEN stopped, asked, stepped, let go THEN it ends like one that was never touched."""
    stopped_stepped_and_let_go(place, mode)


@on(*(one for one in EVERY if one.monitors))
def test_a_rank_that_is_traced_already_is_stopped_too(place: Place) -> None:
    stopped_stepped_and_let_go(place, "traced")


def stopped_stepped_and_let_go(place: Place, mode: str) -> None:
    env = QUIET if mode == "forks" else {}
    target = Target(place, mode, env=env)
    shown = attach(place, target, *ASKED, "go")
    found = answers(shown)
    assert re.match(r"rank 0 stopped, .+:\d+ in \w+\n  -> \S", found[""]), shown
    assert "[0] > w" in shown and "***" not in shown
    assert f"{PROGRAM}({line_of('main', PROGRAM)})<module>()" in found["w"]
    assert found["p MODE"] == repr(mode) and found["pp [MODE]"] == f"[{mode!r}]"
    assert found["whatis MODE"] == "<class 'str'>"
    assert re.match(r"> .+\(\d+\)\w+\(\)", found["n"].removeprefix("--Return--\n"))
    assert "(stopped)" in found["threads"]
    assert found["go"] == "rank 0 resumes"
    target.left()
    wait_for("it to go on", lambda: target.state in "RS")
    assert target.ends() == target.untouched()


@on(*(one for one in EVERY if not one.monitors))
def test_a_rank_that_is_traced_already_is_only_looked_at(place: Place) -> None:
    """Before 3.12 there is one trace function a thread, and this one is the program's own."""
    target = Target(place, "traced")
    shown = attach(place, target, "p MODE", "interrupt", "n", status=1)
    assert "rank 0 cannot be stopped: MainThread is traced by another debugger, or by coverage" in shown
    assert answers(shown)["p MODE"].startswith("'traced'")
    target.left()
    assert target.ends() == target.untouched()


@on_every_python
def test_a_rank_that_runs_is_looked_at_without_a_stop(place: Place) -> None:
    target = Target(place, "busy")
    # It runs: it may be elsewhere when it is asked, which is said.
    shown = without_waits(attach(place, target, "p MODE", "w", options=["--no-stop"]))
    found = r"rank 0: running at .+:\d+ in \w+ \(inspect only\)\n\[0 inspected\] > p MODE\n'busy'"
    assert re.match(found, shown), shown
    target.left()
    target.ends()


@on_every_python
def test_another_thread_than_the_main_one(place: Place) -> None:
    target = Target(place, "threads")
    # One that runs is stopped, and the others go on.
    named = "p __import__('threading').current_thread().name"
    shown = attach(place, target, "w", named, "n", "threads", "go", options=["--thread", "spinner"])
    found = answers(shown)
    assert "in thread spinner" in found[""] and "spin()" in found["w"] and found[named] == "'spinner'", shown
    assert "-> spinner (stopped)" in found["threads"]
    target.left()
    # One that is blocked is inspected, by a name with a space in it too; others can be chosen.
    commands = ("p name", "thread two words", "p name", "thread nobody", "thread", "p MODE", "thread spinner", "p seed")
    shown = attach(place, target, *commands, options=["--thread", "waiter", "--no-stop"], status=1)
    lines = [line for line in shown.splitlines() if not line.startswith("[")]
    assert "rank 0: blocked at" in shown
    assert [line.split()[0] for line in lines if re.match("'|3", line)] == ["'x'", "'y'", "'threads'", "3"], shown
    assert "no thread 'nobody' runs Python here; threads: " in shown
    said = run(place, words_of(target, ["w"], ["--thread", "nobody"]), 2).stderr
    assert "nobody" in said
    target.left()
    assert target.ends() == target.untouched()


@on_every_python
def test_a_main_thread_that_has_ended(place: Place, interpreter: Interpreter) -> None:
    target = Target(place, "no_main")
    if interpreter.version == (3, 12):  # which starts no thread any more once its main thread has ended
        assert "can't create new thread at interpreter shutdown" in refused(place, target)
        assert target.ends() == target.untouched()
        return
    shown = attach(place, target, "threads", "thread worker", "p note", "interrupt", "n", "go")
    assert "_shutdown" in answers(shown)[""] and answers(shown)["p note"].startswith("0"), shown
    assert "in thread worker" in shown
    target.left()
    assert target.ends() == target.untouched()


@on_every_python
def test_a_forked_helper(place: Place) -> None:
    """GIVEN a process that forks again and again THEN its child can be attached to as well, and both at once."""
    target = Target(place, "forks", env=QUIET)
    wait_for("its helper", lambda: target.made("child"))
    child = int((target.folder / "child").read_text())
    shown = attach(place, f"pid:{child}", "w", "p MODE", "n", "go")
    assert "forks()" in shown and "'forks'" in shown
    shown = attach(place, f"pid:{target.pid},{child}", "all p MODE", "n", "go")
    assert "[0-1] 'forks'" in shown, shown
    wait_for("our threads to have gone", lambda: not threads_of(child, "breakranks") and not target.ours())
    target.ends()


def test_ranks_that_stop_at_one_breakpoint_are_said_together(place: Place) -> None:
    ranks = [Target(place, "busy") for _ in range(2)]
    target = "pid:" + ",".join(str(one.pid) for one in ranks)
    waits = ["wait 60"] * 3  # for one of them, and each a moment for the other
    shown = attach(place, target, f"tbreak {PROGRAM}:{line_of('mix', PROGRAM)}", "all c", *waits, "go")
    assert f"ranks 0-1 stopped, {at('mix', 'work')} (breakpoint 1)\n" in shown, shown
    for one in ranks:
        one.left()
        one.ends()


@on_every_python
def test_what_is_assigned_is_the_programs(place: Place) -> None:
    target = Target(place, "assigned")
    attach(place, target, "up", "up", "up", "down", "go", status=1)
    target.left()
    shown = attach(place, target, f"tbreak {PROGRAM}:{line_of('looks', PROGRAM)}", "c", "!note = 7", "p note", "go")
    assert answers(shown)["p note"] == "7", shown
    attach(place, target, "p box.update(x=1)", options=["--no-stop"])
    target.left()
    assert target.ends() == "result (7, {'x': 1})\n"


# ---- what stays

AT_FORK = ("before", "in_child", "in_parent")  # which cannot be taken back


def compared(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    """What differs, but for modules of the standard library and what is called at a fork: these stay."""
    for name in AT_FORK:  # with their full names from 3.11 on
        [found] = [one for one in after["functions"] if one.rpartition(".")[2] == name]  # type: ignore[attr-defined]
        after["functions"].remove(found)  # type: ignore[attr-defined]
    new = set(after.pop("modules")) - set(before.pop("modules"))  # type: ignore[call-overload]
    standard = set(after["standard"])  # type: ignore[call-overload]
    different: dict[str, object] = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    foreign = [name for name in new if name.partition(".")[0] not in standard]
    return {**different, **({"modules": foreign} if foreign else {})}


WAYS = ["look", "stop", "step", "breaks", "late", "eval"]


@on_every_python_with("way", WAYS, core=["step", "breaks"])
def test_nothing_is_left_in_a_program(place: Place, way: str) -> None:
    """WHEN the last console has left THEN the program is as it was, but for modules of the standard library."""
    target = Target(place, "tells")
    before = target.shape()
    armed = f"b {PROGRAM}:{line_of('mix', PROGRAM)}"
    ways = {
        "look": (["--no-stop"], ["w", "l", "p MODE", "threads", "p [x for x in range(3)]", "p 1/0"], 1),
        "stop": ([], ["w", "l", "p MODE", "go"], 0),
        "step": ([], ["n", "s", "n", "n", "go"], 0),
        "breaks": ([], [armed, "c", "w", "c", "p value", "go"], 0),
        "late": ([], ["n", armed], 0),  # it leaves without a word
    }
    for _ in range(2):
        if way == "eval":
            run(place, [BREAKRANKS, "eval", target.name, "MODE, 1"])
        else:
            options, commands, status = ways[way]
            attach(place, target, *commands, options=options, status=status)
        target.left()
    assert compared(before, target.shape()) == {}
    assert files_of(place) == []
    target.ends()


def test_cycles_do_not_grow(place: Place) -> None:
    """50 times in and out of a busy program. scripts/attach-cycles does it 1,000 times."""
    target = Target(place, "threads")

    def used() -> tuple[int, int, int, int]:
        """Descriptors, threads, objects, and KiB of memory."""
        # The collector takes our classes away, but nobody knows when.
        shown = attach(place, target, "p __import__('gc').collect() > 0", "p len(__import__('gc').get_objects())")
        target.left()
        objects = int(re.findall(r"\b\d+$", shown.strip())[-1])
        return fds_of(target.pid), len(os.listdir(f"/proc/{target.pid}/task")), objects, rss_of(target.pid)

    before = (0, 0, 0, 0)
    for cycle in range(50):
        commands = (["w", "n", "go"], ["p MODE"], ["locals", "s", "s"])[cycle % 3]
        attach(place, target, *commands)
        target.left()
        if cycle == 8:  # it has all that it will ever have
            before = used()
    after = used()
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 1000, (before, after)  # they go with the agent
    assert after[3] - before[3] < 40_000, (before, after)  # the C library keeps some for its threads
    assert target.ends() == target.untouched()


# ---- a person at the prompt


def test_a_person_at_the_prompt(place: Place) -> None:
    """GIVEN one program that is blocked WHEN a person looks, interrupts, steps, lets go and leaves THEN all is said."""
    target = Target(place, "lock")
    terminal = place.terminal([BREAKRANKS, "attach", target.name])
    opening = terminal.prompt()
    assert opening == f"rank 0: blocked at {at('lock', 'lock')} (inspect only)\n"
    assert terminal.at == "[0 inspected] > "
    assert terminal.ask("p secret") == "{'lock': 2}"
    assert terminal.ask("up").startswith(f"> {PROGRAM}(")
    assert terminal.ask("down") == pdb_at("lock", "lock")
    assert terminal.ask("n").startswith("*** the rank is not stopped")
    assert terminal.ask("go") == "no rank is held"
    assert terminal.ask("interrupt").endswith("it stops when it returns to Python")
    assert terminal.at == "[0 inspected] > "
    target.wake()
    terminal.expect(f"rank 0 stopped, {at('awake-lock', 'lock')}\n")
    terminal.prompt()
    assert terminal.at == "[0] > "
    assert terminal.ask("s").startswith("--Call--")
    assert terminal.ask("n") == pdb_at("awake", "after")
    assert terminal.ask("p value") == "1"
    terminal.keys("c\r")
    assert terminal.ends() == 0
    assert "the job has ended" in terminal.rest()
    assert target.ends().startswith("result ")


def test_a_person_leaves_a_busy_program(place: Place) -> None:
    target = Target(place, "busy")
    terminal = place.terminal([BREAKRANKS, "attach", target.name])
    assert re.match(rf"rank 0 stopped, {PROGRAM}:\d+ in \w+\n  -> ", terminal.prompt())
    assert terminal.at == "[0] > "
    assert terminal.ask("p 1 + 1") == "2"
    terminal.keys(f"p 12{CTRL_C}")
    terminal.prompt()
    assert terminal.ask("go") == "rank 0 resumes"
    assert terminal.at == "[0 inspected] > "
    assert terminal.ask("p MODE") == "'busy'"
    assert "rank 0 stopped, " in terminal.ask("interrupt")
    assert terminal.at == "[0] > "
    terminal.keys("q\r")
    assert terminal.ends() == 0
    assert "the job keeps running" in terminal.rest()
    target.left()
    assert target.ends() == target.untouched()


def test_ranks_of_one_job_are_named_together(place: Place) -> None:
    """Three processes: one is blocked, two are busy. Those that are blocked are named in the prompt."""
    targets = [Target(place, mode) for mode in ("busy", "lock", "busy")]
    pids = ",".join(str(target.pid) for target in targets)
    terminal = place.terminal([BREAKRANKS, "attach", f"pid:{pids}"])
    opening = terminal.prompt()
    assert f"rank 1: blocked at {at('lock', 'lock')} (inspect only)" in opening and "stopped, " in opening
    assert terminal.at == "[0-2; 1 inspected] > "
    assert terminal.ask("p MODE") == "[0,2]  'busy'\n[1]    'lock'"
    assert terminal.ask("go 0") == "rank 0 resumes"
    assert terminal.at == "[0-2; 0-1 inspected] > "
    assert terminal.ask("focus 2") == ""
    assert terminal.at == "[2] > "
    assert terminal.ask("n").removeprefix("--Return--\n").count("\n") == 1
    assert terminal.ask("go") == "rank 2 resumes"
    assert terminal.at == "[2 inspected] > "
    terminal.ask("focus all")
    assert terminal.at == "[0-2 inspected] > "
    terminal.keys("q\r")
    assert terminal.ends() == 0
    for target in targets:
        target.left()
        target.ends()


def test_bad_words(place: Place) -> None:
    target = Target(place, "busy")
    for options, said in (
        (["--ranks", "7"], "rank 7 is not in this job"),
        (["--ranks", "x"], "not a rank set"),
        (["--timeout", "-1"], "--timeout must be a positive number"),
        (["-c", "w", "--batch", "x"], "exclude each other"),
    ):
        assert said in refused(place, target, options=options)
    assert "'x' is not a process id" in refused(place, "pid:x")
    assert "4194300" in refused(place, "pid:4194300")
    assert target.ours() == []
    target.ends()
