"""The messages between a console and a rank: what is sent is what is read, and what is malformed is refused."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.backend.agent_stacks import _as_py_spy
from breakranks.backend.rank_decoder import AttachAnswer, EvalFields, read_answer, read_event
from breakranks.console import unanswered
from breakranks.observe.pyspy_parse import thread_of
from breakranks.rank_messages import (
    EVENTS,
    AnswerEvent,
    CodePlace,
    CurrentCollective,
    ErrorEvent,
    FrameVariables,
    GoRequest,
    HelloEvent,
    PayloadEvent,
    PayloadRequest,
    ProbedValue,
    ProbeEvent,
    ProbeRequest,
    RankEvent,
    RankState,
    RunRequest,
    SaidEvent,
    StacksEvent,
    StacksRequest,
    StateEvent,
    ThreadCall,
    ThreadStack,
    WhereEvent,
    read_place,
    read_request,
    to_line,
)
from breakranks.show import stop_lines
from breakranks.show.terminal_text import look_of

PLACE = CodePlace(file="/home/me/train.py", line=7, function="step", source="x = 1")
INSIDE: dict[str, Any] = {
    "module": "m", "pass": "forward", "kind": "FSDP2", "class": "C", "gathered": ["m"], "gathered_count": 1,
    "safe": ["p x"],
}  # fmt: skip
BASE: dict[str, Any] = {"turn": 3, "rank": 1, "world": 2, "pid": 12, "host": "n1"}
STOP: dict[str, Any] = {"state": "stopped", "role": "held", "stoppers": "0-1", "since": 5.5, "where": PLACE}
STATE = RankState(**BASE, **STOP)
STACKS = StacksEvent(
    id=7,
    functions=("main", "step"),
    files=("/a.py", "/b.py"),
    stacks=((0, 3, 1, 7), ()),
    threads=(
        ThreadStack(
            tid=12, name="MainThread", stack=0, variables=(FrameVariables(depth=1, names=("i",), texts=("4",)),)
        ),
        ThreadStack(tid=0, name="", stack=1),
    ),
    calls=(ThreadCall(tid=12, text="230 0x0", addresses=(140,), memory=(b"\x01\xff",)),),
    cut=2,
)


def test_what_is_known_of_a_sharded_module_is_read_whole() -> None:
    found = read_event(to_line(StateEvent(**BASE, inside=INSIDE)))
    assert isinstance(found, StateEvent) and found.inside == INSIDE


@pytest.mark.parametrize("blocked", [True, False])
def test_a_rank_in_a_collective_that_the_user_has_not_called_is_at_its_innermost_frame(blocked: bool) -> None:
    """As in a reduction of DDP, in a thread of the library."""
    collective = CurrentCollective(op="all_reduce", members=(0, 1))
    state = WhereEvent(id=4, **BASE, frames=(PLACE,), blocked=blocked, collective=collective)
    assert unanswered._place(state) == "in step, train.py:7"
    assert (
        stop_lines._running_place(state, look_of(io.StringIO(), "never"))
        == "in all_reduce, /home/me/train.py:7 in step"
    )


@pytest.mark.parametrize(
    "event",
    [
        HelloEvent(**BASE),
        StateEvent(**BASE, **STOP, crashed=True, exception="ValueError: x", text="--Return--\n", notes=("a note",)),
        StateEvent(**BASE, inside=INSIDE),
        WhereEvent(
            id=4, **BASE, frames=(PLACE,), blocked=True, collective=CurrentCollective(op="barrier", members=(0,))
        ),
        AnswerEvent(id=5, text="3\n", value={"kind": "number", "value": 3}, state=STATE),
        SaidEvent(text="x"),
        ProbeEvent(hit=2, values=(ProbedValue(source="x", text="1"),), where=PLACE),
        ErrorEvent(id=6, text="no"),
        STACKS,
        PayloadEvent(id=8, answer=b"\x00\xff\n"),
        PayloadEvent(id=9, error="KeyError: 1"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_is_read_as_it_was_sent(event: RankEvent) -> None:
    found = read_event(to_line(event))
    assert type(found) is type(event)
    assert found.plain() == event.plain()


def test_a_state_says_what_its_rank_is_at() -> None:
    assert STATE.is_stopped and STATE.is_held and str(STATE.awaited) == "0-1"
    running = RankState(**BASE)
    assert not running.is_stopped and not running.is_held and not running.awaited
    assert "role" not in running.plain() and running.plain()["tracing"] is False


def test_unknown_keys_and_null_are_left_out() -> None:
    event = read_event(json.dumps({"event": "said", "text": "x", "id": None, "later": {}}).encode())
    assert isinstance(event, SaidEvent) and event.text == "x" and event.id is None


def test_an_event_of_a_later_version_is_known_by_its_number_alone() -> None:
    event = read_event(b'{"event": "later", "id": 3, "text": 7}')
    assert type(event) is RankEvent and event.id == 3


@pytest.mark.parametrize(
    "change",
    [
        {"turn": -1},
        {"turn": "3"},
        {"rank": 1 << 40},
        {"pid": True},
        {"state": "dancing"},
        {"role": []},
        {"since": 1e300},
        {"stoppers": "junk"},
        {"where": {"line": []}},
        {"notes": "text"},
        {"inside": {"safe": 7}},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["hello", "state", "where"])
def test_a_malformed_field_refuses_the_event(kind: str, change: dict[str, Any]) -> None:
    assert read_event(json.dumps({"event": kind, **STATE.plain()}).encode()) is not None
    assert read_event(json.dumps({"event": kind, **STATE.plain(), **change}).encode()) is None
    assert read_event(json.dumps({"event": "answer", "state": {**STATE.plain(), **change}}).encode()) is None


def _thread_with(**fields: Any) -> dict[str, Any]:
    return {"threads": [{"tid": 1, "name": "x", "stack": 0, **fields}]}


@pytest.mark.parametrize(
    "change",
    [
        {"stacks": [[0, 3, 2, 7]]},
        {"stacks": [[-1, 3]]},
        {"stacks": [[0, -3]]},
        {"stacks": [[0, 1 << 31]]},
        {"stacks": [[0]]},
        {"stacks": [["0", 3]]},
        {"stacks": [7]},
        {"files": ["/a.py"]},
        {"functions": ["main", 7]},
        {"cut": -1},
        _thread_with(stack=2),
        _thread_with(stack=-1),
        _thread_with(tid=-1),
        _thread_with(name=None),
        _thread_with(variables=[{"depth": 2, "names": [], "texts": []}]),
        _thread_with(variables=[{"depth": 0, "names": ["i"], "texts": []}]),
        _thread_with(variables=[{"depth": 0, "names": ["i"], "texts": [4]}]),
        {"calls": [{"tid": 1, "text": "", "addresses": [1], "memory": []}]},
        {"calls": [{"tid": 1, "text": "", "addresses": [-1], "memory": ["AA=="]}]},
        {"calls": [{"tid": 1, "text": "", "addresses": [1], "memory": ["\u00e9"]}]},
        {"calls": [{"tid": 1, "text": 7}]},
    ],
    ids=str,
)
def test_malformed_stacks_are_refused(change: dict[str, Any]) -> None:
    assert read_event(json.dumps(STACKS.plain()).encode()) is not None
    assert read_event(json.dumps({**STACKS.plain(), **change}).encode()) is None


_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=8)


@given(st.dictionaries(st.sampled_from(sorted(STACKS.plain())), _JSON))
def test_no_stacks_crash_their_reader(change: dict[str, Any]) -> None:
    event = read_event(json.dumps({**STACKS.plain(), **change, "event": "stacks"}).encode())
    if event is not None:
        assert isinstance(event, StacksEvent)
        for thread in event.threads:
            assert all(event.functions[code] and event.files[code] for code in event.stacks[thread.stack][::2])


def test_stacks_are_as_py_spy_gives_them() -> None:
    (main, other) = _as_py_spy(STACKS)
    assert [(frame["name"], frame["filename"], frame["line"]) for frame in main["frames"]] == [
        ("step", "/b.py", 7),
        ("main", "/a.py", 3),
    ]
    assert main["frames"][0]["locals"] == [{"name": "i", "repr": "4"}] and main["frames"][1]["locals"] is None
    assert (main["os_thread_id"], main["thread_name"], other["frames"]) == (12, "MainThread", [])
    thread = thread_of(main)
    assert thread.hints["step.i"] == "4" and [frame.function for frame in thread.frames] == ["main", "step"]


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{", b'{"event": "answer"}', b"[" * 100_000])
def test_what_is_not_an_event_is_refused(data: bytes) -> None:
    assert read_event(data) is None


def test_every_event_has_a_word_of_its_own() -> None:
    assert all(kind.event == word for word, kind in EVENTS.items()) and len(EVENTS) == 11


def test_a_request_is_read_as_it_was_sent() -> None:
    for request in (
        RunRequest(id=1, line="p x", takers="0-3", look=True),
        ProbeRequest(id=2, place="train.py:7", times=3, prints=("x", "y"), when="x > 1"),
        GoRequest(id=3, ranks="1"),
        StacksRequest(id=4, variables=True, library="x|y", kept=("f|/a.py|x",), calls=True, pointers=("1:2:16",)),
        PayloadRequest(id=5, source="def answer(given): ...", arguments='{"x": 1}'),
    ):
        found = read_request(json.loads(to_line(request)))
        assert type(found) is type(request) and found.plain() == request.plain()


def test_a_request_that_is_unknown_or_malformed() -> None:
    assert read_request({"do": "dance"}) is None and read_request({"do": ["run"]}) is None
    for plain in ({"do": "run"}, {"do": "run", "line": "p 1", "id": []}, {"do": "probe", "place": "a:1", "times": "x"}):
        with pytest.raises((TypeError, ValueError)):
            read_request(plain)


def test_answers_of_injected_code() -> None:
    attached = read_answer(b'{"path": "/run/1.sock", "job": "x", "attached": true}', AttachAnswer)
    assert attached is not None and attached.path == "/run/1.sock" and attached.attached
    told = read_answer(b'{"effect": "barrier needs ranks 0-1", "collective": "barrier"}', EvalFields)
    assert told is not None and told.collective == "barrier"
    assert read_answer(b'{"cut": -1}', EvalFields) is None and read_answer(b'{"path": 7}', AttachAnswer) is None


def test_a_place_is_read_as_far_as_it_is_one() -> None:
    assert read_place({"file": "a.py", "line": "x", "more": 1}) is not None
    assert read_place({}) is None and read_place(None) is None
    place = read_place(PLACE.plain())
    assert place is not None and place.short_file == "train.py:7"
