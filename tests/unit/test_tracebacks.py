"""Tracebacks of one writer: every format that Python and the libraries around it print."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.targets import Interpreter, on_every_python

from breakranks.logs.log_events import LogLine, Raised, TracebackEvent
from breakranks.logs.traceback_reader import TracebackReader

DATA = Path(__file__).resolve().parents[1] / "data" / "logs" / "tracebacks"


def events_of(text: str, voice: str = "rank 3") -> list[TracebackEvent]:
    reader = TracebackReader()
    events: list[TracebackEvent] = []
    for position, line in enumerate(text.split("\n")):
        events += reader.feed(LogLine(line, voice=voice, position=position))
    return events + list(reader.finish())


def only(text: str, voice: str = "rank 3") -> Raised:
    events = events_of(text, voice)
    assert len(events) == 1, events
    assert events[0].count == 1
    return events[0].raised


def functions(raised: Raised | None) -> list[str]:
    assert raised is not None
    return [frame.function for frame in raised.frames]


def stored(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


def printed(interpreter: Interpreter, program: str, folder: Path) -> str:
    """What a program prints that fails."""
    file = folder / "program.py"
    file.write_text(program)
    done = subprocess.run([interpreter.path, str(file)], capture_output=True, text=True, timeout=120)
    return done.stderr


CHAIN = """
class Outer:
    def run(self):
        try:
            {}["k"]
        except KeyError as error:
            raise ValueError("bad\\n  second line") from error
def main():
    try:
        Outer().run()
    except ValueError:
        (lambda: 1 / 0)()
main()
"""


@on_every_python
@pytest.mark.parametrize("voice", ["rank 3", ""])
def test_exceptions_that_were_raised_one_from_the_other(interpreter: Interpreter, voice: str, tmp_path: Path) -> None:
    raised = only(printed(interpreter, CHAIN, tmp_path), voice)

    assert raised.text == "ZeroDivisionError: division by zero" and raised.relation == "context" and raised.complete
    assert functions(raised) == ["<module>", "main", "<lambda>"]
    assert raised.frames[0] == ("<module>", str(tmp_path / "program.py"), 13, False)
    value = raised.cause
    assert value is not None and value.message == "bad\n  second line" and value.relation == "from"
    assert functions(value) == ["main", "run"]
    assert value.cause is not None and value.cause.text == "KeyError: 'k'" and value.cause.cause is None


@on_every_python
def test_a_recursion_with_repeated_lines(interpreter: Interpreter, tmp_path: Path) -> None:
    program = "def f(n):\n    return f(n - 1) if n else max(\n        1,\n        g(2),\n    )\nf(6)\n"
    raised = only(printed(interpreter, program, tmp_path))

    assert raised.text == "NameError: name 'g' is not defined"
    assert functions(raised)[:4] == ["<module>", "f", "f", "f"] and functions(raised)[-1] == "f"


@on_every_python
def test_a_syntax_error_has_no_header(interpreter: Interpreter, tmp_path: Path) -> None:
    raised = only(printed(interpreter, "x = (1 +\n", tmp_path))

    assert raised.type == "SyntaxError" and raised.complete
    assert raised.frames == (("", str(tmp_path / "program.py"), 1, False),)


@on_every_python
def test_threads_and_exceptions_that_python_ignores(interpreter: Interpreter, tmp_path: Path) -> None:
    program = """
import threading
def work():
    raise OSError("in a thread")
class Gone:
    def __del__(self):
        raise KeyError("gone")
thread = threading.Thread(target=work, name="loader")
thread.start()
thread.join()
gone = Gone()
del gone
"""
    events = events_of(printed(interpreter, program, tmp_path))

    seen = [(event.thread.split(" ")[0], event.raised.text) for event in events]
    assert seen == [("loader", "OSError: in a thread"), ("ignored", "KeyError: 'gone'")]


GROUP = """
def inner():
    raise ExceptionGroup("inner", [OSError("o"), TypeError()])
def main():
    found = []
    for f in (lambda: {}["k"], inner):
        try:
            f()
        except Exception as error:
            error.add_note("a note")
            found.append(error)
    raise ExceptionGroup("outer", found)
main()
"""


@on_every_python
def test_exception_groups(interpreter: Interpreter, tmp_path: Path) -> None:
    if interpreter.version < (3, 11):
        pytest.skip("no exception groups")
    raised = only(printed(interpreter, GROUP, tmp_path))

    assert raised.text == "ExceptionGroup: outer (2 sub-exceptions)" and functions(raised) == ["<module>", "main"]
    key, inner = raised.members
    assert key.text == "KeyError: 'k'" and key.notes == ("a note",) and functions(key) == ["main", "<lambda>"]
    assert inner.notes == ("a note",) and functions(inner) == ["main", "inner"] and inner.complete
    assert [member.text for member in inner.members] == ["OSError: o", "TypeError"]


def test_a_group_of_python_3_14() -> None:
    raised = only(stored("python_314"))

    assert functions(raised) == ["<module>", "main"] and raised.notes == ("with a note",)
    assert [member.text for member in raised.members] == ["ValueError: 1", "KeyError: 'k'"]
    assert raised.members[1].notes == ("with a note",)


def test_a_group_ends() -> None:
    first, second = events_of(stored("python_314") + stored("python_314") + "next\n  | no member\n")

    assert first.raised == second.raised and first.last_position == 18 and second.last_position == 37


@pytest.mark.parametrize(
    ("name", "text", "cause", "last"),
    [
        ("pool", "ValueError: bad 1", "ValueError: bad 1", "work"),
        (
            "spawn",
            "torch.multiprocessing.spawn.ProcessRaisedException: -- Process 1 terminated with the following error:",
            "ValueError: bad 1",
            "work",
        ),
        (
            "data_loader",
            "ValueError: Caught ValueError in DataLoader worker process 0.",
            "ValueError: item",
            "__getitem__",
        ),
        ("rich", "ValueError: bad value", "KeyError: 'b'", "inner"),
        ("rich_narrow", "ValueError: bad value", "KeyError: 'b'", "inner"),
        ("ray", "ray.exceptions.RayTaskError(ValueError): ray::f() (pid=12345, ip=10.0.0.1)", "ValueError: bad", "f"),
    ],
)
def test_tracebacks_within_tracebacks(name: str, text: str, cause: str, last: str) -> None:
    raised = only(stored(name))

    assert raised.text == text
    assert raised.cause is not None and raised.relation == "from"
    assert raised.cause.text == cause and functions(raised.cause)[-1] == last


def test_the_failure_summary_of_torchrun() -> None:
    first, last = events_of(stored("child_failed"))

    assert first.raised.text == "ValueError: rec"
    assert last.raised.type.endswith("ChildFailedError") and "exitcode  : -15" in last.raised.message
    assert last.raised.cause is not None and last.raised.cause.text == "ValueError: rec"
    assert functions(last.raised.cause) == ["wrapper", "main"]


def test_boxes_with_wrapped_names() -> None:
    name = "method_with_a_rather_long_name_to_wrap_the_line_of_the_box"
    assert functions(only(stored("rich"))) == functions(only(stored("rich_narrow"))) == ["<module>", name, "inner"]


def test_ipython() -> None:
    raised = only(stored("ipython"))

    assert raised.text == "ValueError: bad"
    assert [(f.function, f.file, f.line) for f in raised.frames] == [
        ("<module>", "Cell In[1]", 4),
        ("f", "Cell In[1]", 2),
        ("g", "~/helper.py", 12),
    ]


PLAIN = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: bad'


@pytest.mark.parametrize(
    "prefix", ["2026-01-01 10:00:00,{} - ERROR - ", "ERROR:root:", "    ", "  traceback : ", "I{} absl] "]
)
@pytest.mark.parametrize("every", [True, False])
def test_a_logger_writes_before_the_header(prefix: str, every: bool) -> None:
    lines = PLAIN.split("\n")
    written = [prefix.format(f"{at:03}") + line if every or at == 0 else line for at, line in enumerate(lines)]
    raised = only("\n".join(written))

    assert raised.text == "ValueError: bad" and functions(raised) == ["f"]


@pytest.mark.parametrize(
    "after", ["", "2026-01-01 10:00:00 INFO next", "\nnext", "INFO: next", "Epoch 3", "[rank0]:[W1] x", "=" * 30]
)
def test_a_message_ends(after: str) -> None:
    assert only(f"{PLAIN}\n  of two lines\n{after}").message == "bad\n  of two lines"


def test_what_is_cut_off_is_not_lost() -> None:
    first, second = events_of("\n".join(PLAIN.split("\n")[:3]) + "\n" + PLAIN)

    assert not first.raised.complete and functions(first.raised) == ["f"] and first.raised.type == ""
    assert second.raised.complete


def test_the_size_of_what_is_kept_is_bounded() -> None:
    frames = "".join(f'  File "a.py", line {at}, in f{at}\n' for at in range(20_000))
    raised = only(f"Traceback (most recent call last):\n{frames}ValueError: {'x' * 300_000}\n" + "  more\n" * 50_000)

    assert len(raised.frames) == 1000 and functions(raised)[0] == "f0" and functions(raised)[-1] == "f19999"
    assert len(raised.message) <= 70_000


PIECES = [
    *PLAIN.split("\n"),
    *stored("python_314").split("\n"),
    *stored("rich").split("\n"),
    *stored("pool").split("\n"),
]
PIECES += ["", '"""', *stored("spawn").split("\n"), *stored("child_failed").split("\n"), *stored("ipython").split("\n")]
PIECES += [
    "Exception in thread a:",
    "Exception ignored in: b",
    "The above exception was the direct cause of the following exception:",
]


@given(
    st.lists(st.tuples(st.one_of(st.sampled_from(PIECES), st.text()), st.sampled_from(["", "", "a", "b"])), max_size=60)
)
def test_no_lines_are_refused(lines: Iterable[tuple[str, str]]) -> None:
    reader = TracebackReader()
    for position, (text, voice) in enumerate(lines):
        list(reader.feed(LogLine(text, voice=voice, position=position)))
    list(reader.finish())
    assert not reader.open
