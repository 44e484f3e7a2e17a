"""JSON objects become dataclasses only if every field has its type."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.typed_json import from_plain


class Words(TypedDict, total=False):
    word: str


@dataclass(frozen=True, kw_only=True)
class Place:
    file: str
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Message:
    id: int
    time: float = 0.0
    state: Literal["running", "stopped"] = "running"
    places: tuple[Place, ...] = ()
    pair: tuple[str, int] = ("", 0)
    names: list[str] = field(default_factory=list)
    table: dict[str, str | int] = field(default_factory=dict)
    words: Words = field(default_factory=lambda: Words())
    value: Any = None


@given(
    st.builds(
        Message,
        id=st.integers(),
        time=st.floats(allow_nan=False, allow_infinity=False),
        places=st.tuples(st.builds(Place, file=st.text(), line=st.none() | st.integers())),
        pair=st.tuples(st.text(), st.integers()),
        names=st.lists(st.text()),
        table=st.dictionaries(st.text(), st.text() | st.integers()),
        words=st.builds(Words, word=st.text()),
        value=st.none() | st.booleans() | st.text(),
    )
)
def test_what_was_written_is_read(message: Message) -> None:
    assert from_plain(Message, json.loads(json.dumps(asdict(message)))) == message


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"id": "7"},
        {"id": True},
        {"id": 7.0},
        {"id": 7, "time": "now"},
        {"id": 7, "state": "odd"},
        {"id": 7, "state": ["running"]},
        {"id": 7, "places": [{"line": 3}]},
        {"id": 7, "places": {"file": "x"}},
        {"id": 7, "places": [{"file": "x", "line": "3"}]},
        {"id": 7, "pair": ["x"]},
        {"id": 7, "pair": ["x", 1, 2]},
        {"id": 7, "names": "abc"},
        {"id": 7, "table": {"x": 1.5}},
        {"id": 7, "table": []},
        {"id": 7, "words": {"word": 1}},
    ],
)
def test_a_field_of_another_type_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_plain(Message, plain)


def test_unknown_fields_are_ignored() -> None:
    assert from_plain(Message, {"id": 7, "new": 1, "words": {"newer": 2}}) == Message(id=7)
