"""The stopping engine, in real processes: any thread is stopped at its next line, and what is armed leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.processes import Processes
from support.targets import SOURCE, Interpreter, on_every_python
from support.waiting import DEADLINE_SECONDS

PROGRAM = Path(__file__).parent / "stopping_program.py"
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "2124"}

Scene = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def scene(tmp_path: Path, interpreter: Interpreter) -> Scene:
    tmp_path.chmod(0o700)

    def run(*words: str, program: Path = PROGRAM) -> list[dict[str, Any]]:
        with Processes(tmp_path) as processes:
            done = processes.call(
                [interpreter.path, "-W", "ignore", str(program), *words],
                {**RANK, "BREAKRANKS_RUN": str(tmp_path), "PYTHONPATH": str(SOURCE)},
                deadline=2 * DEADLINE_SECONDS,
            )
        # A breakpoint in code is announced.
        errors = [line for line in done.stderr.splitlines() if not line.startswith("breakranks: rank 0 stopped at")]
        assert (done.returncode, errors) == (0, []), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def line_of(mark: str) -> int:
    lines = PROGRAM.read_text().splitlines()
    return next(at for at, line in enumerate(lines, 1) if f"# {mark}  #" in f"{line}  #")


def at(mark: str, reason: str, thread: str = "MainThread") -> dict[str, Any]:
    return {"line": line_of(mark), "reason": reason, "thread": thread}


@pytest.mark.parametrize(
    ("work", "marks"),
    [
        ("spinning", {"spinning"}),
        ("sleeping", {"sleeping", "woken"}),
        ("locked", {"unlocked"}),
        ("generating", {"again", "yielding", "yielded", "generating", "resting"}),
        ("sorting", {"keyed", "sorting", "sorted"}),
        ("chained", {"loop", "endless"}),
    ],
)
@on_every_python
def test_a_thread_is_stopped_at_its_next_line_and_stepped(scene: Scene, work: str, marks: set[str]) -> None:
    """Whatever it is at: one line for ever, a sleep, a lock, a generator, a callback of C's, the rest of a line."""
    [found] = scene("halt", work)
    assert found["refused"] == ""
    assert (found["thread"], found["reason"]) == (work, "interrupt")
    assert found["line"] in {line_of(mark) for mark in marks}
    assert found["stepped"] and found["after"]
    assert found["bare"]


@on_every_python
def test_a_breakpoint_in_the_line_that_was_to_be_stopped_is_stepped_from(scene: Scene) -> None:
    """GIVEN a thread that is blocked in C and is to stop WHEN that line calls a breakpoint THEN n takes one step."""
    [found] = scene("interrupted_breakpoint")
    assert found == {
        "refused": "",
        "hit": at("meeting", "breakpoint", "meeting"),
        "answer": [f"> {PROGRAM}({line_of('met')})meeting()"],
        "after": [line_of("met"), "step"],
        "then": line_of("met") + 1,
        "bare": True,
    }


@on_every_python
def test_a_stop_that_is_withdrawn_never_comes(scene: Scene) -> None:
    """WHEN it is taken back while the thread is blocked in C THEN nothing is left there at once, and it runs on."""
    [found] = scene("withdrawn")
    assert found == {
        "pending": True,
        "blocked": True,
        "running": False,
        "bare": True,
        "went_on": True,
        "stop": None,
    }


@on_every_python
def test_breakpoints_of_a_rank_that_runs(scene: Scene, interpreter: Interpreter) -> None:
    """pdb's own words and answers, without stopping anything for them."""
    shown = iter(scene("breaks"))
    add, added = f"{PROGRAM}:{line_of('add')}", f"{PROGRAM}:{line_of('added')}"
    assert next(shown) == {"set": f"Breakpoint 1 at {add}\n", "tracing": True}
    assert next(shown) == {"hit": at("add", "breakpoint 1")}
    found = next(shown)
    assert found["stepped"].startswith(f"> {PROGRAM}({line_of('adds')})add()")
    assert found["then"] == at("adds", "step")
    assert next(shown) == {"answer": "", "again": at("add", "breakpoint 1")}
    assert next(shown) == {"cleared": f"Deleted breakpoint 1 at {add}\n", "tracing": True}
    assert next(shown) == {"quiet": None, "tracing": False, "bare": True}
    assert next(shown) == {"conditional": f"Breakpoint 2 at {add}\n"}
    assert next(shown) == {"hit": at("add", "breakpoint 2"), "value": "500\n"}
    assert next(shown) == {"traced": not interpreter.monitors}  # it runs to its breakpoint
    assert next(shown) == {
        "comma": "New condition set for breakpoint 2.\n",
        "hit": at("add", "breakpoint 2"),
        "value": "600\n",
    }
    assert next(shown) == {"disabled": f"Disabled breakpoint 2 at {add}\n"}
    assert next(shown) == {"quiet": None}
    found = next(shown)
    assert found["enabled"] == f"Enabled breakpoint 2 at {add}\n"
    assert found["ignored"] == "Will ignore next 1 crossing of breakpoint 2.\n"
    for text in (f"2   breakpoint   keep no    at {add}", "stop only if value == 600", "already hit"):
        assert text in found["listed"]
    before = _hits(found["listed"])
    found = next(shown)
    assert (found["hit"], found["value"]) == (at("add", "breakpoint 2"), "600\n")
    assert _hits(found["hits"]) > before + 1000  # by a whole round, which was ignored
    assert next(shown) == {"late": f"Breakpoint 3 at {added}\n", "hit": at("added", "breakpoint 3")}
    assert next(shown) == {"listed": ""}  # it was temporary
    found = next(shown)
    assert found["hit"] == at("working once", "breakpoint 4")
    found = next(shown)
    assert found["function"].startswith(f"Breakpoint 5 at {PROGRAM}:")
    assert found["hit"] == at("add", "breakpoint 5")
    assert next(shown) == {"quiet": None, "bare": True}


def _hits(listed: str) -> int:
    return int(listed.split("already hit ")[1].split()[0])


@on_every_python
def test_breakpoints_are_those_of_every_thread(scene: Scene) -> None:
    """One that runs, one that starts later, and a generator that rested when they were set."""
    assert scene("everywhere") == [
        {"hit": at("yielded", "breakpoint 1", "early")},
        {"hit": at("add", "breakpoint 2", "late")},
        {"hit": at("resumed", "breakpoint 3", "resumes")},
        {"alive": True, "bare": True},
    ]


@on_every_python
def test_what_cannot_be_set_is_said(scene: Scene) -> None:
    *shown, last = scene("wrong")
    said = {one["text"]: one["said"] for one in shown}
    assert said["b nowhere.py:3"] == "*** no file nowhere.py is loaded in this process\n"
    assert "has no code; nearest lines with code: " in said["b stopping_program.py:1000000"]
    here = line_of("---- what the threads of the job do")
    assert said[f"b stopping_program.py:{here}"] == (
        f"*** line {here} of stopping_program.py has no code; "
        f"nearest lines with code: {here - 4}, {here - 3}, {here + 3}\n"
    )
    assert said["b no_such"].startswith("*** The specified object 'no_such' is not a function")
    assert said["b util.py:3"].startswith("*** util.py matches more than one file: ")
    assert "/importlib/util.py" in said["b util.py:3"] and "/multiprocessing/util.py" in said["b util.py:3"]
    assert said["n"] == "*** n needs a stopped rank\n"
    for text, answer in said.items():
        assert answer.startswith("*** "), text
    assert last == {"bare": True, "tracing": False}


@on_every_python
def test_a_watched_value_stops_where_it_has_changed(scene: Scene) -> None:
    running, cleared, *shown = scene("watch")
    assert running == {
        "set": "Watchpoint 1: scene.name, now 'breakranks scene'\n",  # found in a calling frame
        "unknown": "*** no_such + 1 is not defined in any frame of MainThread\n",
    }
    assert cleared == {"cleared": "Deleted watchpoint 1\n", "bare": True}
    assert shown[0]["set"].endswith("count, now 0\n")
    assert shown[0]["label"].endswith("label, now 'first'\n")
    assert "watchpoint   count, last 0" in shown[0]["listed"]
    assert shown[1]["hit"]["reason"].endswith("count: 0 → 1")
    assert (shown[1]["hit"]["line"], shown[1]["hit"]["thread"]) == (line_of("changes"), "changing")
    assert shown[1]["count"] == "1\n"
    assert shown[2]["removed"].startswith("Deleted watchpoint ")
    assert shown[2]["none"] == "*** there is no watchpoint 99\n"
    [said] = shown[3].pop("said")
    assert said.endswith("(count) deleted: changes has returned\n")
    assert shown[3] == {"stop": None, "tracing": False, "bare": True}


@on_every_python
def test_an_exception_stops_where_it_is_raised_and_once(scene: Scene) -> None:
    shown = scene("catch")
    assert shown[0] == {"set": "catching ValueError\n", "listed": "catching ValueError\n"}
    for one in shown[1:3]:
        assert one["hit"]["line"] == line_of("raises again")
        assert one["hit"]["reason"].startswith("raised ValueError: ")
        assert one["table"] == "{}\n"
    assert shown[4] == {"quiet": None}
    lines = shown[6]["all"]
    first, second = line_of("raises"), line_of("raises again")
    assert lines in ([first, second] * 2, [second, first] * 2)
    assert shown[6]["bare"]


@on_every_python
def test_a_probe_tells_and_never_stops(scene: Scene) -> None:
    found, wrong = scene("probes")
    told = found["told"]
    assert [one["hit"] for one in told] == [1, 2, 3]
    assert [one["done"] for one in told] == [False, False, True]
    for one in told:
        value, more, unknown = one["values"]
        assert int(value["text"]) % 2 == 0 and int(more["text"]) == int(value["text"]) + 1
        assert value["value"] == {"kind": "number", "type": "int", "value": int(value["text"])}
        assert (unknown["source"], unknown["error"]) == ("unknown", "NameError: name 'unknown' is not defined")
        assert one["thread"] == "MainThread"
    assert (found["stop"], found["bare"]) == (None, True)
    [complaint] = wrong["told"]  # once, however often it is come to
    assert complaint["error"] == "its condition raised NameError: name 'nobody' is not defined"
    assert (wrong["dropped"], wrong["again"], wrong["bare"]) == (True, False, True)


@on_every_python
def test_disarming_leaves_nothing(scene: Scene, interpreter: Interpreter) -> None:
    """Fifty times, while threads run, sleep and spin; and in the middle of a step over a call that is blocked in C."""
    cycles, rested, stepped = scene("disarming")
    during = cycles["during"]
    assert during["tools"] == [4] if interpreter.monitors else during["tracers"] >= 4
    assert during["table"][0] > cycles["before"]["table"][0]
    assert cycles["after"] == cycles["before"]
    assert cycles["bare"]
    assert cycles["grown"] < 100
    assert rested == {"rested": 1, "after": True, "bare": True}
    assert stepped == {"hit": at("locked", "breakpoint 1", "locked"), **STEPPED}


STEPPED = {"stepped": True, "after": True, "ended": True, "quiet": None, "bare": True}


@on_every_python
def test_a_forked_child_never_stops(scene: Scene) -> None:
    assert scene("forked") == [{"child": [10]}]


@on_every_python
def test_somebody_elses_trace_function_is_kept(scene: Scene, interpreter: Interpreter) -> None:
    [found] = scene("traced")
    assert found["theirs"]
    if interpreter.monitors:
        # It is asked for in two ways, and either may come first.
        hit = found["hit"]
        assert hit == at("add", "breakpoint 1", "theirs") or (hit["reason"], hit["thread"]) == ("interrupt", "theirs")
    else:
        assert found["said"].endswith("it does not apply to theirs: traced by another debugger, or by coverage\n")
        assert found["refused"] == "theirs is traced by another debugger, or by coverage"
        assert found["hit"] is None
