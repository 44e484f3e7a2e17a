"""One question to running programs, and out again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.targets import Interpreter, on_every_python
from support.waiting import DEADLINE_SECONDS as DEADLINE

from .attaching import PROGRAM, Target, files_of, run
from .console_program import launcher_variables
from .terminals import BREAKRANKS, Place, line_of


@pytest.fixture
def place(tmp_path: Path, interpreter: Interpreter) -> Iterator[Place]:
    with Place(tmp_path, interpreter) as place:
        yield place
        assert files_of(place) == []


def ask(place: Place, target: Target | str, *words: str, status: int = 0) -> str:
    name = target if isinstance(target, str) else target.name
    return run(place, [BREAKRANKS, "eval", name, "--timeout", str(DEADLINE), *words], status).stdout


def ask_json(place: Place, target: Target | str, *words: str, status: int = 0) -> list[dict[str, Any]]:
    found = json.loads(ask(place, target, "--json", *words, status=status))
    assert found["schema"] == 1
    return list(found["answers"])


def refused(place: Place, target: Target | str, *words: str, status: int = 2) -> str:
    name = target if isinstance(target, str) else target.name
    said = run(place, [BREAKRANKS, "eval", name, "--timeout", str(DEADLINE), *words], status).stderr
    assert re.match(r"breakranks: .+\n  \S", said), said
    return said


def ranks(place: Place, *modes: str) -> str:
    """Programs as one job: what their launcher would have told them is in their environment."""
    found = [Target(place, mode, env=launcher_variables(rank, len(modes))) for rank, mode in enumerate(modes)]
    return "pid:" + ",".join(str(one.pid) for one in found)


# ---- answers


def test_answers_are_folded_over_ranks(place: Place) -> None:
    target = ranks(place, "lock", "busy", "lock", "pipe")
    lock, pipe = line_of("lock", PROGRAM), line_of("pipe", PROGRAM)
    assert ask(place, target, "--ranks", "0,2", "secret") == f"in lock, {PROGRAM}:{lock}\n[0,2] {{'lock': 2}}\n"
    shown = ask(place, target, "--rank", "0,2-3", "secret")
    assert f"ranks 0,2 in lock, {PROGRAM}:{lock}\n" in shown
    assert f"rank 3 in pipe, {PROGRAM}:{pipe}\n" in shown
    assert shown.endswith("[0,2]  {'lock': 2}\n[3]    'pipe'\n")
    assert ask(place, target, "int(os.environ['RANK'])").endswith("min 0 (rank 0)  max 3 (rank 3)  mean 1.5\n")
    assert "[0-3] 'attach_program.py'" in ask(place, target, "os.path.basename(sys.argv[0])")


def test_json(place: Place) -> None:
    target = ranks(place, "lock", "busy", "lock")
    (one,) = ask_json(place, target, "--ranks", "0,2", "secret")
    assert (one["ranks"], one["value"], one["error"]) == ("0,2", "{'lock': 2}", None)
    assert one["where"]["function"] == "lock" and one["where"]["line"] == line_of("lock", PROGRAM)
    found = ask_json(place, target, "1 / (int(os.environ['RANK']) - 1)", status=1)
    assert [(one["ranks"], one["value"], one["error"]) for one in found] == [
        ("0", "-1.0", None),
        ("1", None, "ZeroDivisionError: division by zero"),
        ("2", "1.0", None),
    ]


def test_a_frame_by_its_function_or_number(place: Place) -> None:
    target = Target(place, "lock")
    assert "'lock'" in ask(place, target, "MODE")
    assert ask(place, target, "secret['lock'] + 1").endswith("\n3\n")
    assert ask(place, target, "--frame", "lock", "sorted(locals())") == (
        f"in lock, {PROGRAM}:{line_of('lock', PROGRAM)}\n['free', 'held', 'secret', 'threading']\n"
    )
    assert "in lock" in ask(place, target, "--frame", "0", "1")
    assert "in <module>" in ask(place, target, "--frame", "1", "1")
    assert "in <module>" in ask(place, target, "--frame", "<module>", "MODE")
    said = ask(place, target, "--frame", "nowhere", "1", status=1)
    assert "no function 'nowhere' is on its stack; functions: lock, <module>" in said
    said = ask(place, target, "--frame", "99", "1", status=1)
    assert "there is no frame 99: the stack has 2, 0 is the innermost" in said


@on_every_python
def test_names_of_a_frame_on_every_python(place: Place) -> None:
    """Locals, globals, closures and scopes inside an expression: Pythons differ in how a frame gives them."""
    target = Target(place, "lock")
    source = "sorted(locals()), MODE, secret['lock'] + 1, [secret[key] for key in secret], (lambda: held.locked())()"
    shown = ask(place, target, source)
    assert shown.endswith("\n(['free', 'held', 'secret', 'threading'], 'lock', 3, [2], True)\n"), shown
    assert "ZeroDivisionError" in ask(place, target, "print('noise') or secret['lock'] / 0", status=1)
    assert target.ends() == target.untouched()


def test_a_thread_by_its_name(place: Place) -> None:
    target = Target(place, "threads")
    assert ask(place, target, "--thread", "waiter", "name").endswith("'x'\n")
    assert ask(place, target, "--thread", "two words", "name").endswith("'y'\n")
    spun = ask(place, target, "--thread", "spinner", "seed")
    assert "thread spinner" in spun and spun.endswith("\n3\n")
    assert "unset" in ask(place, target, "waits")
    (one,) = ask_json(place, target, "--thread", str(target.pid), "first > 0")
    assert (one["value"], one["thread"]) == ("True", f"MainThread ({target.pid})")
    said = ask(place, target, "--thread", "nobody", "1", status=1)
    assert "no thread 'nobody' runs Python there; threads: " in said and "spinner" in said


def test_values_of_any_kind(place: Place) -> None:
    target = Target(place, "pipe")
    assert ask(place, target, "None").endswith("\nNone\n")
    assert ask(place, target, "''").endswith("\n''\n")
    assert ask(place, target, "[c for c in secret]").endswith("\n['p', 'i', 'p', 'e']\n")
    assert ask(place, target, "(lambda: secret)()").endswith("\n'pipe'\n")
    assert "\x1b" not in ask(place, target, "type('X', (), {'__repr__': lambda self: chr(27) + '[31m'})()")
    assert len(ask(place, target, "'x' * 10**8")) < 300_000
    (cut,) = ask_json(place, target, "'x' * 10**7")
    assert cut["cut"] > 9_000_000 and len(cut["value"]) < 300_000
    for raising, said in (("1/0", "ZeroDivisionError"), ("exit(1)", "SystemExit"), ("nothing", "NameError")):
        assert said in ask(place, target, raising, status=1)
    deep = "(lambda f: f(f))(lambda f: f(f))"
    assert "RecursionError" in ask(place, target, deep, status=1)
    assert "ZeroDivisionError" in ask(place, target, "type('X', (), {'__repr__': lambda self: 1 / 0})()", status=1)
    assert target.ends().startswith("result ")


def test_what_it_prints_is_not_in_the_programs_output(place: Place) -> None:
    target = Target(place, "pipe")
    ask(place, target, "print('noise')")
    assert target.ends() == target.untouched()


# ---- what blocks


@pytest.mark.parametrize(
    ("blocks", "seconds", "status"),
    [("time.sleep(1e6)", "1", 2), ("__import__('threading').Event().wait()", "1", 2), ("input()", str(DEADLINE), 1)],
)
def test_what_blocks_is_given_up(place: Place, blocks: str, seconds: str, status: int) -> None:
    target = Target(place, "busy")
    run(place, [BREAKRANKS, "eval", target.name, "--timeout", seconds, blocks], status)
    assert target.process.poll() is None
    assert ask(place, target, "MODE").endswith("'busy'\n")  # others can still ask
    assert target.ends() == target.untouched()


def test_what_kills_is_said(place: Place) -> None:
    target = Target(place, "busy")
    assert "ended before it answered" in refused(place, target, "os._exit(5)")
    assert target.process.wait(DEADLINE) == 5


# ---- effects


@pytest.mark.parametrize(
    "source", ["note = 7", "box['x'] = 1", "note += 1", "del box", "(note := 7)", "import json", "if 1: pass"]
)
def test_effects_are_not_done_unasked(place: Place, source: str) -> None:
    target = Target(place, "assigned")
    said = refused(place, target, source)
    assert "--allow-effects" in said and source in said
    assert target.ends() == "result (0, {})\n"


@on_every_python
def test_effects_that_are_meant(place: Place) -> None:
    target = Target(place, "assigned")
    assert ask(place, target, "--allow-effects", "note = 7").startswith("in assigned, ")
    ask(place, target, "--allow-effects", "box['x'] = note")
    assert target.ends() == "result (7, {'x': 7})\n"


@pytest.mark.parametrize(("answer", "result"), [("yes", "(7, {})"), ("no", "(0, {})"), ("", "(0, {})")])
def test_effects_in_a_terminal_ask_first(place: Place, answer: str, result: str) -> None:
    target = Target(place, "assigned")
    terminal = place.terminal([BREAKRANKS, "eval", target.name, "--timeout", str(DEADLINE), "note = 7"])
    terminal.expect("'note = 7' is an assignment, and changes the job. Do it? yes/no > ")
    terminal.keys(answer + "\r")
    assert terminal.ends() == (0 if answer == "yes" else 2)
    assert target.ends() == f"result {result}\n"


# ---- bad input


def test_bad_input(place: Place) -> None:
    target = Target(place, "pipe")
    assert "is not Python" in refused(place, target, "1 +")
    assert "there is no expression" in refused(place, target, "")
    assert "there is no expression" in refused(place, target, "# nothing")
    assert "outside of its function" in refused(place, target, "(yield 1)")
    assert "--timeout must be a positive number" in refused(place, target, "--timeout", "0", "1")
    assert "rank 7 is not in this job" in refused(place, target, "--ranks", "7", "1")
    assert refused(place, "pid:4194300", "1")
    assert refused(place, "nowhere.json", "1")
    assert target.ours() == []
    assert target.ends().startswith("result ")


def test_a_rank_without_a_process_is_refused(place: Place) -> None:
    """GIVEN a job of three ranks, of which two have a process WHEN the third is asked THEN each command says so."""
    for rank in range(2):
        Target(place, "sleep", env={**launcher_variables(rank, 3), "MASTER_PORT": "29577"})
    for command in (["eval", "MODE"], ["attach", "-c", "w"], ["probe", "attach_program.py:1", "--print", "MODE"]):
        said = run(place, [BREAKRANKS, *command, "--job", "python-29577", "--rank", "2"], 2).stderr
        assert said.startswith("breakranks: no process of rank 2 was found\n  Ranks with a process: 0-1."), (
            command,
            said,
        )
