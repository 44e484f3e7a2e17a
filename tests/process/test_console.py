"""The console as a person has it: keys typed into a terminal, and what is shown there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakranks.rankset import RankSet
from support.consoles import records, without_waits
from support.processes import alive
from support.stalls import undisturbed
from support.targets import SOURCE, Interpreter, on_every_python
from support.waiting import DEADLINE_SECONDS as DEADLINE
from support.waiting import wait_for

from .console_program import everyone_total, steps_total
from .terminals import (
    BREAKRANKS,
    CTRL_A,
    CTRL_C,
    CTRL_D,
    PROGRAM,
    PROMPT,
    TAB,
    UP,
    Job,
    Place,
    Terminal,
    line_of,
    said_to_have_ended,
    source_of,
)


@pytest.fixture
def place(tmp_path: Path, interpreter: Interpreter) -> Iterator[Place]:
    with Place(tmp_path, interpreter) as place:
        yield place


def at(mark: str, function: str) -> str:
    """A place as our own lines have it."""
    return f"{PROGRAM}:{line_of(mark)} in {function}"


def pdb_at(mark: str, function: str, returned: str = "") -> str:
    """A place as pdb has it."""
    return f"> {PROGRAM}({line_of(mark)}){function}(){returned}\n-> {source_of(mark)}"


def answers(terminal: Terminal, *pairs: tuple[str, str]) -> None:
    for line, expected in pairs:
        assert (line, terminal.ask(line)) == (line, expected)


def runs_to(console: Terminal, stop: str) -> str:
    """Type `c`; gives what is shown up to the stop, which may come after another prompt."""
    console.keys("c\r")
    shown = console.expect(stop)
    console.prompt()
    return shown


# ---- lines for pdb


@on_every_python
def test_commands_of_pdb_at_a_prompt(place: Place) -> None:
    """GIVEN rank 0 at its breakpoint, three held WHEN pdb's commands are typed THEN pdb's answers are shown."""
    job = place.job(4, "steps", "2")
    job.stopped()
    console = place.console()
    assert console.opening == (
        f"rank 0 stopped, {at('stop', 'step')}\n"
        f"  -> {source_of('stop')}\n"
        f"ranks 1-3 are held, {at('stop', 'step')}, for rank 0\n"
    )
    assert console.at == "[0] > "
    stack = "\n".join(
        (
            f"  {PROGRAM}({line_of('main')})<module>()\n-> {source_of('main')}",
            f"  {PROGRAM}({line_of('call')})steps()\n-> {source_of('call')}",
            pdb_at("stop", "step"),
        )
    )
    unknown = "** raised NameError: name 'doubled' is not defined **"
    answers(
        console,
        ("w", stack),
        ("u", pdb_at("call", "steps")),
        ("p count", "'2'"),
        ("d", pdb_at("stop", "step")),
        ("a", "i = 0"),
        ("p loss", "0.0"),
        ("pp {'loss': loss}", "{'loss': 0.0}"),
        ("whatis loss", "<class 'float'>"),
        ("loss + 1", "1.0"),
        ("p unknown", "*** NameError: name 'unknown' is not defined"),
        ("display doubled", f"display doubled: {unknown}"),
        ("n", pdb_at("after", "step")),
        ("s", f"--Call--\n> {PROGRAM}({line_of('def')})twice()\n-> {source_of('def')}"),
        ("a", "x = 0.0\nscale = 2"),
        ("r", "--Return--\n" + pdb_at("twice-returns", "twice", "->0.0")),
        ("n", pdb_at("later", "step") + f"\ndisplay doubled: 0.0  [old: {unknown}]"),
        ("unt", pdb_at("returns", "step") + "\ndisplay doubled: 1.0  [old: 0.0]"),
        ("undisplay doubled", ""),
        (f"b {line_of('after')}", f"Breakpoint 1 at {PROGRAM}:{line_of('after')}"),
        (f"tbreak {line_of('later')}", f"Breakpoint 2 at {PROGRAM}:{line_of('later')}"),
        ("cl 1", f"Deleted breakpoint 1 at {PROGRAM}:{line_of('after')}"),
    )
    lines = PROGRAM.read_text().splitlines()
    here = line_of("returns")
    listed = console.ask("l").splitlines()
    assert f"{here:3}  ->\t{lines[here - 1]}".expandtabs() in listed
    assert [line[:3] for line in listed] == [f"{number:3}" for number in range(here - 5, here + 6)]
    whole = console.ask("ll").splitlines()
    assert [int(line[:3]) for line in whole] == list(range(line_of("def step"), here + 1))
    # It runs to the breakpoints that were set, or to ours again; then those that hold for the first call go on too.
    shown = runs_to(console, f"rank 0 stopped, {at('stop', 'step')}\n  -> {source_of('stop')}")
    assert "rank 0 runs to its breakpoints\n" in shown
    everybody = f"0    prompt  {at('stop', 'step')}\n1-3  held    {at('stop', 'step')}"
    wait_for(
        "all to be at the second call",
        lambda: console.ask("ranks") == everybody and console.ask("all p i") == "[0-3] 1",
    )
    shown = runs_to(console, f"rank 0 stopped, {at('later', 'step')}")
    assert "rank 0 runs to its breakpoints" in shown
    console.keys("c\r")
    assert console.ends() == 0
    shown = console.rest()
    assert said_to_have_ended(shown) == RankSet.span(0, 4)
    assert shown.endswith("ended\nthe job has ended\n")
    job.ends()
    assert [job.result(rank) for rank in range(4)] == [str(steps_total(rank, 2)) for rank in range(4)]


@pytest.mark.parametrize("first", ["", "n"])
@on_every_python
def test_what_is_assigned_at_the_prompt_is_the_jobs(place: Place, first: str) -> None:
    """WHEN a variable is set at the prompt THEN the job computes with it; so it is in pdb, stepping or not."""
    job = place.job(2, "steps", "1")
    job.stopped()
    console = place.console()
    if first:
        console.ask(first)
    answers(console, ("!loss = 50", ""), ("p loss", "50"))
    console.ask("w")  # looks at all frames
    answers(console, ("p loss", "50"), ("all !loss += 1", ""), ("all p loss", "[0]  51\n[1]  2.0\n" + NUMBERS))
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()
    assert [job.result(0), job.result(1)] == ["103.0", "5.0"]


NUMBERS = "      min 2 (rank 1)  max 51 (rank 0)  mean 26.5"


def test_each_c_shows_the_next_stop(place: Place) -> None:
    """However soon it comes."""
    job = place.job(2, "everyone", "30")
    job.stopped()
    console = place.console()
    stop = f" stopped, {at('everyone', 'everyone')}\n  -> {source_of('everyone')}"
    for i in range(30):
        wait_for("both ranks", lambda i=i: console.ask("p i") == f"[0-1] {i}")  # type: ignore[misc]
        if i < 29:
            shown = console.ask("c")
            assert shown.startswith("ranks 0-1 resume\n") and stop in shown
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()


def test_ranks_that_stop_at_one_place_a_moment_apart_are_said_together(tmp_path: Path) -> None:
    """GIVEN ranks that come to the same line one after the other WHEN a console waits THEN it shows one line."""

    def stopped_apart(folder: Path) -> None:
        folder.mkdir()
        with Place(folder) as place:
            job = place.job(3, "apart")
            job.stopped()
            console = place.console()
            assert console.ask("c").endswith(f"ranks 0-2 stopped, {at('apart', 'apart')}\n  -> {source_of('apart')}"), (
                console.seen
            )
            assert console.at == "[0-2] > "
            console.ask("go")
            job.ends()

    # Where the machine is busy they come further apart than they are to be.
    for number in range(3):
        with contextlib.suppress(AssertionError):
            stopped_apart(tmp_path / str(number))
            return
    stopped_apart(tmp_path / "last")


# ---- who it goes to


def test_lines_go_to_whom_they_are_meant_for_and_answers_are_folded(place: Place) -> None:
    job = place.job(4, "steps", "1")
    job.stopped()
    console = place.console()
    where = at("stop", "step")
    figures = "[0]  0.0\n[1]  1.0\n[2]  2.0\n[3]  3.0\n      min 0 (rank 0)  max 3 (rank 3)  mean 1.5"
    answers(
        console,
        ("all p loss", figures),
        ("all p loss >= 1", "[1-3]  True\n[0]    False"),
        ("all p 7", "[0-3] 7"),
        ("all p 1/(RANK-2)", "[0]  -0.5\n[1]  -1.0\n[2]  *** ZeroDivisionError: division by zero\n[3]  1.0\n" + FINITE),
        ("rank 3 p loss", "3.0"),
        ("rank 1,3 p RANK % 2", "[1,3] 1"),
        ("ranks", f"0    prompt  {where}\n1-3  held    {where}"),
        ("focus 1-2", ""),
    )
    assert console.at == "[1-2] > "
    answers(console, ("p RANK > 0", "[1-2] True"), ("focus held", ""))
    assert console.at == "[1-3] > "
    answers(console, ("focus all", ""))
    assert console.at == "[0-3] > "
    answers(
        console,
        ("focus", "the focus is 0"),
        ("focus 9", "rank 9 is not connected. The job has ranks 0-3. Connected: 0-3."),
        ("rank 9 w", "rank 9 is not connected. The job has ranks 0-3. Connected: 0-3."),
        ("rank 3,8-9 w", "ranks 8-9 are not connected. The job has ranks 0-3. Connected: 0-3."),
        ("go 12", "rank 12 is not connected. The job has ranks 0-3. Connected: 0-3."),
        ("focus x", "'x' is not a rank set. Write ranks as 3, 0-7, 0,4-6, or 0-31/8 for every eighth."),
        ("all", "the command is missing. For example: all p loss, rank 3 w"),
        ("interrupt", "rank 0 is stopped already"),
    )
    assert console.at == "[0] > "
    # One rank steps; the others hold, and do not follow before it leaves the debugger.
    answers(
        console,
        ("n", pdb_at("after", "step")),
        ("ranks", f"0    prompt  {at('after', 'step')}\n1-3  held    {where}"),
    )
    assert console.ask("go 1-2").startswith("ranks 1-2 resume")  # and, when they were quick: have ended
    left = f"0    prompt         {at('after', 'step')}\n3    held           {where}\n{ABSENT}"
    wait_for("both to have ended", lambda: console.ask("ranks").endswith(left))
    assert job.result(1) and job.result(2)
    console.keys("go\r")
    assert console.ends() == 0
    job.ends()
    assert [job.result(rank) for rank in range(4)] == [str(steps_total(rank, 1)) for rank in range(4)]


FINITE = "      min -1 (rank 1)  max 1 (rank 3)  mean -0.1667"
ABSENT = "1-2  not connected  on another host, or at no breakpoint yet"


def test_help_of_ours_and_of_pdbs(place: Place) -> None:
    job = place.job(1, "everyone", "1")
    job.stopped()
    console = place.console()
    ours = console.ask("help")
    assert ours.startswith("A line goes to pdb in every rank of the focus, [0-3] in the prompt")
    for word in (
        "focus 0-3",
        "all CMD",
        "rank 3 CMD",
        "ranks",
        "go [SET]",
        "hold [SET]",
        "interrupt [SET]",
        "kill-job",
    ):
        assert f"\n  {word}" in ours
    assert console.ask("?") == console.ask("h") == ours
    assert "Continue execution until the next line in the current function" in console.ask("help n")
    assert "No help for 'zork'" in console.ask("help zork")
    # As in pdb the Enter key does the last line again; but only one that was for pdb.
    answers(console, ("   ", ""), ("# a remark", ""), ("total += 2", ""), ("", ""), ("", ""), ("p total", "6"))
    answers(console, ("ranks", f"0  prompt  {at('everyone', 'everyone')}"), ("", "6"), ("", "6"))
    console.keys("c\r")
    assert console.ends() == 0


# ---- ranks that run


SLEEPS = "sleep|select|poll"  # up to 3.10 it is a select


def spinning(place: Place) -> tuple[Job, Terminal]:
    """Three ranks that run: 0 and 2 in Python, 1 in C. A console at its prompt."""
    os.mkfifo(place.folder / "wake")
    job = place.job(3, "spin")
    job.stopped()
    console = place.console()
    assert console.at == "[0-2] > "
    console.keys("c\r")
    shown = console.expect("running; Ctrl-C returns to the prompt\n")
    assert without_waits(shown) == "c\nranks 0-2 resume\n"
    for rank, waits in ((0, SLEEPS), (1, "pipe"), (2, SLEEPS)):
        wchan = Path(f"/proc/{job.ranks[rank].pid}/wchan")
        wait_for(f"rank {rank} in C", lambda wchan=wchan, waits=waits: re.search(waits, wchan.read_text()))  # type: ignore[misc]
    console.keys(CTRL_C)
    assert console.prompt() == "^C\n"
    assert console.at == "[0-2 running] > "
    return job, console


@on_every_python
def test_a_rank_in_a_loop_is_stopped_and_one_in_c_when_it_comes_back(place: Place) -> None:
    job, console = spinning(place)
    answers(console, ("p turns", "ranks 0-2 are running: `interrupt 0-2` stops them"))
    in_loop = re.compile(rf"rank 0 stopped, {PROGRAM}:\d+ in spin\n  -> .*")
    assert in_loop.fullmatch(console.ask("interrupt 0"))
    assert console.at == "[0] > "
    answers(
        console,
        ("p turns > 0", "True"),
        ("interrupt", "rank 0 is stopped already"),
        ("rank 2 p 1", "rank 2 is running: `interrupt 2` stops it"),
    )
    assert re.fullmatch(rf"rank 2 is held, {PROGRAM}:\d+ in spin", console.ask("hold 2"))
    assert console.at == "[0] > "
    assert console.ask("interrupt 1") == (
        f"rank 1 is in blocked, console_program.py:{line_of('blocked')}; it stops when it returns to Python"
    )
    table = console.ask("ranks").splitlines()
    assert [line.split()[:2] for line in table] == [["0", "prompt"], ["1", "blocked"], ["2", "held"]]
    assert table[1].endswith(at("blocked", "blocked"))
    # Asked twice is stopped once, at a line of its own.
    console.keys("interrupt 1\r")
    console.expect("interrupt 1\n")
    time.sleep(0.3)  # it waits five seconds for the rank; by now it has asked, and if not: it comes to the same
    (place.folder / "wake").write_text("x")
    console.expect(f"rank 1 stopped, {at('awake', 'blocked')}\n  -> {source_of('awake')}\n")
    console.prompt()
    assert console.at == "[0-1] > "
    answers(console, ("go", "ranks 0-2 resume"))
    assert console.at == "[0-2 running] > "
    (place.folder / "end").touch()
    stops = f"{at('behind', 'spin')}\n  -> {source_of('behind')}\n"
    console.expect(re.compile(rf"stopped, {re.escape(stops)}\[0-2\] > "))  # unasked, all or one after the other
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()


def test_why_and_stacks_from_inside(place: Place) -> None:
    job = place.job(2, "steps", "1")
    job.stopped()
    console = place.console()
    stacks = console.ask("stacks 1")
    assert f"{PROGRAM}:{line_of('stop')}" in stacks and "[1]" in stacks and "[0-1]" not in stacks
    why = console.ask("why")
    assert re.search(r"rank 0 (\(pid \d+\) )?waits at a breakranks prompt, in step, console_program.py:", why)
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()


# ---- keys


def test_ctrl_c_and_ctrl_d_at_the_prompt(place: Place) -> None:
    """Ctrl-C throws the line away and nothing else; Ctrl-D leaves as q does."""
    job = place.job(2, "everyone", "2")
    job.stopped()
    console = place.console()
    console.keys("p 12" + CTRL_C)
    console.prompt()
    assert console.at == "[0-1] > "
    answers(console, ("p 3", "[0-1] 3"))
    console.keys(CTRL_D)
    assert console.ends() == 0
    assert "^C" not in console.rest()
    job.ends()
    assert [job.result(rank) for rank in range(2)] == [str(everyone_total(rank, 2)) for rank in range(2)]


def test_ctrl_c_pressed_on_sight_gives_the_prompt(place: Place) -> None:
    """Ctrl-C WHILE something is being shown is no reason to leave."""
    job = place.job(1, "spin")
    job.stopped()
    console = place.console()
    for _ in range(5):
        console.keys("c\r")
        console.expect("running")
        console.keys(CTRL_C)
        console.prompt()
        assert console.at == "[0 running] > "
        console.ask("interrupt")
        assert console.at == "[0] > "
    console.keys("p 'x' * 250000\r")
    console.expect("xxxx")  # more than a terminal takes at a time: we are in the middle of it now
    time.sleep(0.3)
    console.keys(CTRL_C)
    console.prompt()
    assert console.at == "[0] > "
    (place.folder / "end").touch()
    assert "rank 0 stopped" in console.ask("c")
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()


def tab(console: Terminal, completed: str) -> None:
    """Press Tab until it is completed: a rank that does not answer in time is not waited for."""
    for _ in range(int(DEADLINE / 2)):
        console.keys(TAB)
        with contextlib.suppress(AssertionError):
            console.expect(completed, 2.0)
            return
    raise AssertionError(f"not completed: {completed!r} in {console.shown()[-500:]!r}")


def test_tab_completes_variables_and_words(place: Place) -> None:
    job = place.job(2, "steps", "1")
    job.stopped()
    console = place.console()
    for _ in range(2):  # before and after a first command
        for typed, completed in (
            ("p los", "p loss"),
            ("foc", "focus"),
            ("interr", "interrupt"),
            ("all p zzz", "all p zzz"),
        ):
            console.keys(typed)
            tab(console, completed)
            console.keys("_")  # comes after what Tab has done
            console.expect("_")
            console.keys("\x15# \r")
            console.prompt()
        answers(console, ("p 1", "1"))
        console.ask("n")
    console.keys("p doub")
    tab(console, "p doubled")
    console.keys("\r")
    assert without_waits(console.prompt()).strip() == "0.0"
    console.keys("p '{}'.upp" + TAB)  # what cannot be completed is left alone
    console.keys("er()\r")
    assert "'{}'" in console.prompt()
    console.keys("q\r")
    assert console.ends() == 0
    job.ends()


def test_lines_of_an_earlier_console_are_in_the_history(place: Place) -> None:
    job = place.job(2, "everyone", "1")
    job.stopped()
    first, second = place.console(), place.console()
    assert second.opening.endswith("1 other console is connected: ranks stay stopped until all have left\n")
    first.ask("p 'unique' + str(41)")
    first.keys("q\r")
    assert first.ends() == 0
    assert "the job keeps running" in first.rest()
    second.keys("q\r")
    assert second.ends() == 0
    job.ends()
    job = place.job(2, "everyone", "1")
    job.stopped()
    third = place.console()
    third.keys(UP + UP + UP)  # the two q are of both consoles: one does not write over the other's
    third.expect("p 'unique' + str(41)")
    third.keys("\r")
    assert third.prompt().endswith("[0-1] 'unique41'\n")
    history = place.folder / "state" / "breakranks" / "history"
    assert history.parent.stat().st_mode & 0o777 == 0o700
    assert history.stat().st_mode & 0o077 == 0  # what people type into a debugger is nobody else's
    third.keys("q\r")
    assert third.ends() == 0
    job.ends()


def test_kill_job_wants_a_yes(place: Place) -> None:
    job = place.job(3, "steps", "1")
    job.stopped()
    console = place.console()
    for answer in ("no", "", "y", "nonsense"):
        console.keys("kill-job\r")
        console.expect("end the job? yes/no > ")
        console.keys(answer + "\r")
        assert console.prompt().endswith("not ended\n")
        assert console.at == "[0] > "
    console.keys("kill-job\r")
    console.expect("end the job? yes/no > ")
    console.keys(CTRL_C)
    assert console.prompt().endswith("not ended\n")
    assert all(rank.poll() is None for rank in job.ranks)
    answers(console, ("p loss", "0.0"))
    console.keys("kill-job\r")
    console.expect("end the job? yes/no > ")
    console.keys("yes\r")
    assert console.ends() == 0
    assert "the job has ended" in console.rest()
    assert all(rank.wait(DEADLINE) != 0 for rank in job.ranks)
    assert not any(job.result(rank) for rank in range(3))


# ---- the console that a rank opens in its own terminal


def opened(place: Place, mode: str, *arguments: str) -> Terminal:
    """Two ranks in the foreground of a terminal, as a shell starts them."""
    words = [place.interpreter.path, str(PROGRAM), "launch", "2", mode, *arguments]
    terminal = place.terminal(words, {"PYTHONPATH": str(SOURCE)})
    terminal.opening = terminal.prompt()

    def stopped() -> bool:
        rows = [line.split() for line in terminal.ask("ranks").splitlines()]
        return bool(rows) and all(row[1] in ("prompt", "held") for row in rows)

    wait_for("both ranks", stopped)
    return terminal


def console_in(place: Place) -> int:
    """The pid of the console that a rank has opened."""
    for child in [one for pid in place.agents().values() for one in Path(f"/proc/{pid}/task").glob("*/children")]:
        with contextlib.suppress(OSError):  # it has just ended
            for found in child.read_text().split():
                if b"--opened-by" in Path(f"/proc/{found}/cmdline").read_bytes():
                    return int(found)
    raise AssertionError("no console was opened")


@on_every_python
def test_a_console_opens_in_the_terminal_of_the_job(place: Place) -> None:
    """GIVEN a job in the foreground of a terminal WHEN it stops THEN the console is there, and `c` gives it back."""
    terminal = opened(place, "spin")
    stop = f"stopped, {at('before', 'spin')}\n  -> {source_of('before')}\n"
    assert re.search(rf"(?:ranks 0-1|rank [01]) {re.escape(stop)}", terminal.opening)  # the other may come later
    assert terminal.at == "[0-1] > "
    # Echo, and editing: a character is rubbed out, another put in the middle.
    terminal.keys("p tunrs\x7f\x7f\x7f\x1b[C")
    terminal.keys("rns" + CTRL_A + "\x1b[C\x1b[C" + "3+" + "\r")
    assert terminal.prompt().endswith("[0-1] 3\n")
    for turn, key in enumerate((CTRL_C, CTRL_C * 3, "\x1c", "\x1a")):  # also Ctrl-\\ and Ctrl-Z
        for typed in ("", "p 12"):  # before the first key of a line, and after it
            terminal.keys(f"\x15{typed}")
            time.sleep(0.1)
            terminal.keys(key)
            time.sleep(0.1)
        terminal.keys(f"\x15p 'turn' + str({turn})\r")
        terminal.expect(f"[0-1] 'turn{turn}'\n")
        terminal.prompt()
    assert "***" not in terminal.seen
    assert terminal.seen.count("[0-1] 3\n") == 1  # Ctrl-C is no Enter, which would do it again
    terminal.keys("c\r")
    terminal.expect("ranks 0-1 resume\n")
    wait_for("the terminal to be as it was", lambda: terminal.modes == terminal.before)
    assert not PROMPT.search(terminal.rest())
    assert terminal.process.poll() is None
    # It opens again at the next stop, and again gives the terminal back.
    (place.folder / "end").touch()
    assert f"stopped, {at('behind', 'spin')}\n  -> {source_of('behind')}\n" in terminal.prompt()
    wait_for("both ranks", lambda: terminal.ask("p 4") == "[0-1] 4")
    terminal.keys("c\r")
    assert terminal.ends() == 0
    assert "spun" in (place.folder / "result.0").read_text() and "spun" in (place.folder / "result.1").read_text()
    wait_for("the terminal to be as it was", lambda: terminal.modes == terminal.before)


def test_the_opened_console_is_killed_and_the_job_goes_on(place: Place) -> None:
    """WHEN it is killed with -9 THEN the ranks run on, with right results, and the terminal is as it was."""
    terminal = opened(place, "steps", "3")
    assert terminal.modes != terminal.before
    os.kill(console_in(place), signal.SIGKILL)
    assert terminal.ends() == 0
    assert terminal.modes == terminal.before
    results = [(place.folder / f"result.{rank}").read_text() for rank in range(2)]
    assert results == [str(steps_total(rank, 3)) for rank in range(2)]
    assert "breakpoints have been off since the console left" in terminal.seen


def test_the_opened_console_is_left_with_q(place: Place) -> None:
    terminal = opened(place, "steps", "3")
    terminal.keys("q\r")
    assert terminal.ends() == 0
    assert "the job keeps running\n" in terminal.seen
    wait_for("the terminal to be as it was", lambda: terminal.modes == terminal.before)


def test_ctrl_c_ends_the_job_when_the_terminal_is_its_own_again(place: Place) -> None:
    """Between the stops Ctrl-C is what it always was: it ends the job."""
    terminal = opened(place, "spin")
    terminal.keys("c\r")
    terminal.expect("ranks 0-1 resume\n")
    wait_for("the terminal to be as it was", lambda: terminal.modes == terminal.before)
    pids = place.agents().values()
    wait_for("the console to have ended", lambda: not _has_console(place))
    terminal.keys(CTRL_C)
    assert terminal.ends() != 0
    wait_for("the ranks to have ended", lambda: not any(alive(pid) for pid in pids))


def _has_console(place: Place) -> bool:
    try:
        return bool(console_in(place))
    except AssertionError:
        return False


def test_no_console_opens_where_it_is_not_wanted(place: Place) -> None:
    terminal = place.terminal([sys.executable, str(PROGRAM), "launch", "2", "steps", "1"], {"BREAKRANKS_CONSOLE": "0"})
    terminal.expect(
        f"breakranks: rank 0 stopped at console_program.py:{line_of('stop')} in step; connect with: "
        "breakranks console\n"
    )
    wait_for("two stopped ranks", lambda: len(place.agents()) == 2)
    assert place.batch("go").returncode == 0
    assert terminal.ends() == 0


# ---- when it stops


@on_every_python
def test_conditions_and_counts_are_per_call_in_the_code(place: Place) -> None:
    """`when` as a value, a function and a text; `skip` and `times`; what raises or names nobody does not stop."""
    job = place.job(1, "counted")
    job.stopped()
    console = place.console()
    stops = []
    shown = console.opening
    while True:
        [line] = re.findall(rf"rank 0 stopped, {PROGRAM}:(\d+)", shown)
        stops.append((int(line), int(console.ask("p i"))))
        if len(stops) == 5:
            break
        shown = console.ask("c")
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()
    value, function, text, both = (line_of(mark) for mark in ("value", "function", "text", "both"))
    assert stops == [(value, 3), (function, 3), (text, 4), (both, 5), (both, 5)]
    said = job.said(0)
    assert said.count("breakranks: the condition at ") == 1
    assert (
        f"the condition at process/console_program.py:{line_of('raises')} raised NameError: name 'unknown' is not "
        "defined; the rank does not stop there\n"
    ) in said
    assert said.count("this job has no rank 99; its ranks are 0 (ranks=99)\n") == 1
    assert said.count("ranks='junk' is not a set of ranks") == 1
    assert "write 3, '0-3,7', [0, 1] or 'all'" in said


@pytest.mark.parametrize(
    ("value", "said"), [("junk", "ranks='junk' is not a set of ranks"), ("99", "this job has no rank 99")]
)
def test_ranks_in_the_environment_that_are_none(place: Place, value: str, said: str) -> None:
    job = place.job(2, "chosen", env={"BREAKRANKS_RANKS": value})
    job.ends()
    assert said in job.said(0)
    assert [job.result(rank) for rank in range(2)] == ["chosen"] * 2


def test_ranks_in_the_environment_stop(place: Place) -> None:
    job = place.job(3, "chosen", env={"BREAKRANKS_RANKS": "1-2"})
    job.stopped()
    console = place.console()
    assert console.at == "[1-2] > "
    where = at("chosen", "chosen")
    assert console.opening == (
        f"ranks 1-2 stopped, {where}\n  -> {source_of('chosen')}\nrank 0 is held, {where}, for ranks 1-2\n"
    )
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()


@on_every_python
def test_what_is_evaluated_at_a_prompt_does_not_stop_again(place: Place) -> None:
    job = place.job(2, "steps", "1")
    job.stopped()
    console = place.console()
    answers(
        console,
        ("p step(10)", "11.0"),
        ("p breakranks.breakpoint()", "None"),
        ("all p step(10)", "[0]  11.0\n[1]  13.0\n      min 11 (rank 0)  max 13 (rank 1)  mean 12"),
        ("p breakranks.hold()", "None"),
    )
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()
    assert [job.result(rank) for rank in range(2)] == [str(steps_total(rank, 1)) for rank in range(2)]


def test_a_stop_that_nobody_comes_to_goes_on_by_itself(place: Place) -> None:
    """BREAKRANKS_WAIT=1: the ranks go on after a second; but not while somebody looks."""
    job = place.job(2, "steps", "1", env={"BREAKRANKS_WAIT": "1"})
    job.ends()
    assert f"rank 0 stopped at console_program.py:{line_of('stop')} in step" in job.said(0)
    assert [job.result(rank) for rank in range(2)] == [str(steps_total(rank, 1)) for rank in range(2)]
    job = place.job(2, "spin", env={"BREAKRANKS_WAIT": "1"})
    wait_for("their first stop", lambda: all("stopped at" in job.said(rank) for rank in range(2)))
    wait_for("both to go on", lambda: all((place.folder / f"spinning.{rank}").exists() for rank in range(2)))
    wait_for("all to be told so", lambda: not job.stops())
    console = place.terminal([BREAKRANKS, "console"])
    console.expect("no rank has stopped yet; waiting (Ctrl-C leaves)\n")
    (place.folder / "end").touch()
    console.prompt()
    wait_for("both ranks", lambda: console.ask("p RANK * 0") == "[0-1] 0")
    time.sleep(1.5)
    answers(console, ("p RANK * 0", "[0-1] 0"))
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()


# ---- scripts


def test_a_script_leaves_everything_as_it_was_and_can_be_run_again(place: Place) -> None:
    job = place.job(2, "steps", "2")
    job.stopped()
    for _ in range(2):
        done = place.batch("p loss", "all p loss + 1")
        assert done.stdout == (
            "[0] > p loss\n0.0\n[0] > all p loss + 1\n[0]  1.0\n[1]  2.0\n"
            "      min 1 (rank 0)  max 2 (rank 1)  mean 1.5\n"
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert set(job.stops()) == {0, 1}
    assert place.batch("p unknown").returncode == 1
    bad = place.batch("focus 9")
    assert bad.returncode == 2
    assert bad.stderr == "breakranks: rank 9 is not connected\n  The job has ranks 0-1. Connected: 0-1.\n"
    assert place.batch("n").stdout.splitlines()[-1] == f"-> {source_of('after')}"
    last = place.batch("p i", "c", "p i", "go").stdout.splitlines()
    assert last[:2] + last[-4:-1] == ["[0] > p i", "0", "[0] > p i", "1", "[0] > go"]
    job.ends()
    assert [job.result(rank) for rank in range(2)] == [str(steps_total(rank, 2)) for rank in range(2)]


def test_a_script_in_json_and_from_a_file(place: Place) -> None:
    job = place.job(2, "steps", "1")
    job.stopped()
    commands = ["p loss", "all p loss", "ranks", "focus 0-1", "help n", "n", "go"]
    script = place.folder / "ask.txt"
    script.write_text("\n".join(["# a remark", "", *commands]) + "\n")
    done = place.batch(options=["--json", "--batch", str(script)])
    assert done.returncode == 0, done.stderr
    found = records(done.stdout)
    assert {one["schema"] for one in found} == {1}
    assert [one["command"] for one in found] == [line for line in commands if line != "focus 0-1"]
    assert found[0]["answers"][0] == {**found[0]["answers"][0], "ranks": "0", "text": "0.0", "error": False}
    assert [one["ranks"] for one in found[1]["answers"]] == ["0", "1"]
    assert [one["state"] for one in found[2]["ranks"]] == ["stopped", "stopped"]
    assert found[4]["focus"] == "0-1"
    assert found[5]["notice"] == "ranks 0-1 resume"
    job.ends()


def test_files_that_are_no_scripts_and_jobs_that_are_none(place: Place) -> None:
    """Exit status 2, what is wrong, and what to do. Nothing of it is a traceback."""
    binary = place.folder / "binary"
    binary.write_bytes(bytes(range(256)) * 10)
    for options, said, remedy in (
        (["--batch", "missing.txt"], "cannot read missing.txt", "one command per line"),
        (["--batch", str(binary)], f"cannot read {binary}", "one command per line"),
        (["--batch", str(place.folder)], f"cannot read {place.folder}", "one command per line"),
        (["--batch", "x", "-c", "w"], "-c and --batch exclude each other", "Put the commands into the file"),
        (["--timeout", "-1", "-c", "w"], "--timeout must be a positive number", "--timeout 60"),
        (["--wait", "0", "-c", "w"], "no rank here has reached a breakpoint", "put breakranks.breakpoint() where"),
        (["--wait", "0", "--job", "x", "-c", "w"], "no rank of job 'x' has reached", "put breakranks.breakpoint()"),
        (["--wait", "0", f"pid:{os.getpid()}", "-c", "w"], "no rank here has reached a", "put breakranks.breakpoint()"),
        ([str(binary), "-c", "w"], "a console needs a job that runs", "Omit the target"),
    ):
        done = place.batch(options=options)
        assert (options, done.returncode) == (options, 2), done.stderr
        assert said in done.stderr and remedy in done.stderr, (options, done.stderr)
        assert "Traceback" not in done.stderr
    nobody = place.terminal([BREAKRANKS, "console"])
    assert nobody.ends() == 2
    assert "no rank here has reached a breakpoint" in nobody.rest()


# ---- printing


def test_lines_of_many_ranks_in_one_pipe_are_whole(tmp_path: Path) -> None:
    """GIVEN 4 ranks that print 60 lines each into one pipe THEN every line is whole, of one rank, and in order."""
    folders = (tmp_path / str(number) for number in range(9))

    def look() -> None:
        folder = next(folders)
        folder.mkdir()
        with Place(folder) as place:
            lines_are_whole(place)

    undisturbed(look)


def lines_are_whole(place: Place) -> None:
    ranks, lines = 4, 60
    reading, writing = os.pipe()
    # Whoever is kept in the middle of a line for half a second is not waited for: let it not be by us who read.
    # It all fits in.
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    job = place.job(ranks, "printer", "7", str(lines), stdout=writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        shown = pipe.read().decode().split("\n")
    job.ends()
    assert shown.pop() == ""
    assert len(shown) == ranks * lines
    turns = [0] * ranks
    for line in shown:
        found = re.fullmatch(r"\[rank (\d)\] (\d+) (\d+) (([a-z])\5*)?", line)
        assert found is not None, line[:200]
        rank = int(found[1])
        assert found[4] in (None, chr(97 + rank) * int(found[3])) and len(found[4] or "") == int(found[3])
        assert int(found[2]) == turns[rank]
        turns[rank] += 1
    assert turns == [lines] * ranks


def test_a_stopped_printer_holds_nobody_up(place: Place) -> None:
    """WHEN one rank is stopped, perhaps in the middle of a line THEN the others are through all the same."""
    reading, writing = os.pipe()
    job = place.job(1, "printer", "1", "1000000", stdout=writing)
    reader = place.start(["cat"], stdin=reading, stdout=subprocess.DEVNULL)
    os.close(reading)
    lock = place.run / "print.lock"
    wait_for("a line", lambda: lock.exists())
    for _ in range(200):  # until it is stopped with the lock in its hands
        job.ranks[0].send_signal(signal.SIGSTOP)
        wait_for("it to stand", lambda: "T (stopped)" in Path(f"/proc/{job.ranks[0].pid}/status").read_text())
        if _locked(lock):
            break
        job.ranks[0].send_signal(signal.SIGCONT)
        time.sleep(0.001)
    assert _locked(lock)
    other = place.job(1, "printer", "2", "5", stdout=writing)
    os.close(writing)
    other.ends()
    assert reader.poll() is None


def _locked(path: Path) -> bool:
    inode = path.stat().st_ino
    return any(f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines() if "->" not in line)
