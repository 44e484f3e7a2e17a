"""The stand-in for msgspec writes and reads what msgspec does, for everything that breakranks gives it."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
import pkgutil
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import breakranks
from breakranks.hosts import host_messages
from breakranks.hosts.bootstrap import stand_in
from breakranks.snapshot import snapshot_file as snapshot_file
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.recorder_tables import Entry, Group, Operation, Recorder, Track, Transfer, pack_rows

from .test_file import example

SOURCE = Path(breakranks.__file__).parent
STAND_IN = str(Path(stand_in.__file__).parent)
Twin = Callable[[str], ModuleType]


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("msgspec", "breakranks")


@pytest.fixture(scope="module")
def twin() -> Iterator[Twin]:
    """Imports a module of ours as a host without msgspec would have it, beside the one that is here."""
    theirs: dict[str, ModuleType] = {}

    def load(name: str) -> ModuleType:
        here = {key: sys.modules.pop(key) for key in list(sys.modules) if is_ours(key)}
        sys.modules.update(theirs)
        sys.path.insert(0, STAND_IN)
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(STAND_IN)
            theirs.update({key: sys.modules.pop(key) for key in list(sys.modules) if is_ours(key)})
            sys.modules.update(here)

    assert load("msgspec").__file__ == f"{STAND_IN}/msgspec/__init__.py"
    yield load


class Asked:
    """Runs something with the twin's modules in place, for what looks types up by their module."""

    def __init__(self, twin: Twin, *names: str) -> None:
        self._modules = {name: twin(name) for name in names}

    def __enter__(self) -> None:
        self._before = {name: sys.modules.get(name) for name in self._modules}
        sys.modules.update(self._modules)

    def __exit__(self, *_: object) -> None:
        for name, module in self._before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def whole() -> Snapshot:
    entry = Entry(number=3, operation=1, record=7, state="started", created=1.5, stack=1, thread=9)
    recorder = Recorder(
        version="2.10",
        time=5.0,
        tracks=(
            Track(group=0, first=1, history=pack_rows([1] * 300), completed=2, pending=(entry,), last=entry, since=0.5),
        ),
        transfers=(Transfer(0, True, -1, entry),),
        wrapped=True,
        newest=6.0,
        source="live",
        notes={"module": "layers.3"},
    )
    made = example()
    first = msgspec.structs.replace(made.ranks[0], recorder=recorder)
    groups = (Group(name="0", description="default_pg", ranks="0-3", timeout=600.0),)
    operations = (Operation(""), Operation("all_reduce", "[[4]]", "[[4]]", "Float"))
    return msgspec.structs.replace(made, ranks=(first, *made.ranks[1:]), groups=groups, operations=operations)


def model(twin: Twin) -> Asked:
    return Asked(
        twin, "breakranks.snapshot.model", "breakranks.snapshot.recorder_tables", "breakranks.snapshot.introspection"
    )


def test_snapshots_are_the_same_to_the_byte(twin: Twin) -> None:
    """GIVEN a snapshot of everything WHEN one side writes it and the other reads it THEN nothing is different."""
    real = whole()
    data = msgspec.msgpack.encode(real)
    other, theirs = twin("msgspec"), twin("breakranks.snapshot.model")
    with model(twin):
        read = other.msgpack.decode(data, type=theirs.Snapshot)
        again = other.msgpack.encode(read)
    assert type(read) is theirs.Snapshot
    assert repr(read) == repr(real)
    assert again == data
    assert other.to_builtins(read) == msgspec.to_builtins(real)
    assert msgspec.json.decode(other.json.encode(read)) == msgspec.json.decode(msgspec.json.encode(real))


def test_the_file_that_one_writes_the_other_reads(twin: Twin) -> None:
    file = twin("breakranks.snapshot.snapshot_file")
    data = snapshot_file.pack(whole())
    with model(twin):
        theirs = file.unpack(data)
        assert repr(theirs) == repr(whole())
        assert file.pack(theirs) == data
    assert snapshot_file.unpack(data) == whole()


VALUES: dict[str, Any] = {
    "int": 7, "str": "ä", "bool": True, "float": 1.25, "bytes": b"\0\xff", "str | None": "x",
    "tuple[str, str] | None": ("1", "2"), "tuple[int, ...]": (1, 2), "tuple[str, ...]": ("a",),
    "dict[str, Any]": {"a": [1, {"b": None}]}, "tuple[dict[str, Any], ...]": ({"a": (1, 2)},),
}  # fmt: skip


def every_message(module: Any, package: Any) -> Iterator[Any]:
    """One of each, with a value in every field whose type is in the table, and one with defaults alone."""
    for name in sorted(vars(module)):
        kind = getattr(module, name)
        if not (isinstance(kind, type) and issubclass(kind, package.Struct) and kind.__module__ == module.__name__):
            continue
        hints = kind.__annotations__
        values = {key: VALUES[hint] for key, hint in hints.items() if hint in VALUES}
        needed = {one.name for one in package.structs.fields(kind) if one.required}
        if needed <= values.keys():
            yield kind(**values)
            yield kind(**{key: values[key] for key in needed})


UNIONS = ("Request", "Report")


def test_messages_are_the_same_to_the_byte(twin: Twin) -> None:
    other, theirs = twin("msgspec"), twin("breakranks.hosts.host_messages")
    ours = list(every_message(host_messages, msgspec))
    assert len(ours) > 30
    data = [msgspec.msgpack.encode(one) for one in ours]
    read = []
    for name in UNIONS:
        union = getattr(host_messages, name)
        read += [
            repr(msgspec.msgpack.decode(text, type=union))
            for one, text in zip(ours, data, strict=True)
            if type(one) in union.__args__
        ]
    with Asked(twin, "breakranks.hosts.host_messages", "breakranks.jobs.found_jobs"):
        made = list(every_message(theirs, other))
        assert [other.msgpack.encode(one) for one in made] == data
        theirs_read = []
        for name in UNIONS:
            union = getattr(theirs, name)
            for one, text in zip(made, data, strict=True):
                if type(one) in union.__args__:
                    found = other.msgpack.decode(text, type=union)
                    assert type(found) is type(one)
                    theirs_read.append(repr(found))
                else:
                    with pytest.raises(other.MsgspecError):
                        other.msgpack.decode(text, type=union)
    assert theirs_read == read


def test_jobs_that_were_found_travel(twin: Twin) -> None:
    """Named tuples, with structs in them, in a message."""
    from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
    from breakranks.snapshot.model import Job, Missing, Problem

    job = FoundJob(
        Job(key="k", launcher="torchrun", world_size=3),
        (FoundRank(0, 10), FoundRank(1, 11, 1)),
        (Missing("2", "absent"),),
    )
    report = host_messages.JobsFound(1, LocalJobs((job,), (Problem("p", "r"),)))
    data = msgspec.msgpack.encode(report)
    assert msgspec.msgpack.decode(data, type=host_messages.Report) == report
    other, theirs = twin("msgspec"), twin("breakranks.hosts.host_messages")
    with Asked(twin, "breakranks.hosts.host_messages", "breakranks.jobs.found_jobs", "breakranks.snapshot.model"):
        read = other.msgpack.decode(data, type=theirs.Report)
        assert repr(read) == repr(report)
        assert other.msgpack.encode(read) == data


def outcome(read: Callable[[], Any], package: Any) -> tuple[str, str]:
    try:
        return "", repr(read())
    except (package.MsgspecError, ValueError, RecursionError) as error:
        return type(error).__name__, ""


def test_broken_bytes_are_refused_alike(twin: Twin) -> None:
    """GIVEN a snapshot with some bytes changed WHEN both read it THEN what one takes the other takes, the same."""
    chance = random.Random(0)
    data = msgspec.msgpack.encode(whole())
    broken = []
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 3))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        broken.append(bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.1 else changed))
    ours = [outcome(lambda text=text: msgspec.msgpack.decode(text, type=Snapshot), msgspec) for text in broken]
    other, theirs = twin("msgspec"), twin("breakranks.snapshot.model")
    with model(twin):
        their = [outcome(lambda text=text: other.msgpack.decode(text, type=theirs.Snapshot), other) for text in broken]
    for mine, one in zip(ours, their, strict=True):
        if mine[0]:
            assert one[0]
        elif one[0]:
            assert one[0] in ("UnicodeDecodeError", "DecodeError")  # in a field without a name: msgspec skips it unread
        else:
            assert mine == one
    assert 200 < sum(bool(one[0]) for one in ours) < 1300
    assert sum(not one[0] for one in their) > 200


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda below: st.lists(below, max_size=20) | st.dictionaries(st.text("abc", max_size=5), below, max_size=20),
    max_leaves=40,
)


@given(PLAIN)
def test_plain_values_are_the_same_to_the_byte(twin: Twin, value: Any) -> None:
    other = twin("msgspec")
    data = msgspec.msgpack.encode(value)
    assert other.msgpack.encode(value) == data
    assert other.msgpack.decode(data) == msgspec.msgpack.decode(data)
    assert other.to_builtins(value) == msgspec.to_builtins(value)
    text = msgspec.json.encode(value)
    assert other.json.decode(text) == msgspec.json.decode(text)
    assert msgspec.json.decode(other.json.encode(value)) == msgspec.json.decode(text)


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 65535, 65536])
def test_every_length_has_its_own_way(twin: Twin, size: int) -> None:
    other = twin("msgspec")
    for value in ("x" * size, b"x" * size, [1] * size, dict.fromkeys(range(size)), {"a": ("x" * size,)}):
        assert other.msgpack.encode(value) == msgspec.msgpack.encode(value)
        assert other.msgpack.decode(other.msgpack.encode(value)) == msgspec.msgpack.decode(
            msgspec.msgpack.encode(value)
        )


@pytest.mark.parametrize("text", [b"NaN", b"[1", b"", b'"\xff"', b"1 2", b'"\\ud800"', b'"\t"', b"[1,]", b"{1:2}"])
def test_broken_json_is_refused(twin: Twin, text: bytes) -> None:
    other = twin("msgspec")
    for package in (msgspec, other):
        with pytest.raises((package.DecodeError, UnicodeDecodeError)):
            package.json.decode(text)
    with pytest.raises(other.ValidationError, match="Expected `object`, got `array`"):
        other.json.decode(b"[]", type=dict)


def test_what_cannot_be_written_is_refused_alike(twin: Twin) -> None:
    other = twin("msgspec")
    for value, error in (("\udcff", UnicodeEncodeError), (1 << 64, OverflowError), (object(), TypeError)):
        for package in (msgspec, other):
            with pytest.raises(error):
                package.msgpack.encode(value)


# ---- structs


def every_struct(module: Any, package: Any) -> dict[str, Any]:
    return {
        name: kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, package.Struct) and kind.__module__ == module.__name__
    }


def modules_with_structs() -> list[str]:
    found = []
    for one in pkgutil.walk_packages([str(SOURCE)], "breakranks."):
        if "stand_in" in one.name or "payloads" in one.name:
            continue
        path = SOURCE.joinpath(*one.name.split(".")[1:])
        text = (path / "__init__.py" if one.ispkg else path.with_suffix(".py")).read_text()
        if "Struct" in text and "msgspec" in text:
            found.append(one.name)
    return found


@pytest.mark.parametrize("name", modules_with_structs())
def test_every_struct_of_ours_can_be_made_with_it(twin: Twin, name: str) -> None:
    """Whoever uses a new option of msgspec finds out here that hosts without msgspec would not know it."""
    ours = every_struct(importlib.import_module(name), msgspec)
    theirs = every_struct(twin(name), twin("msgspec"))
    assert ours.keys() == theirs.keys()
    for key, kind in ours.items():
        other = theirs[key]
        assert other.__struct_fields__ == kind.__struct_fields__
        assert other.__match_args__ == kind.__match_args__
        required = [field.name for field in msgspec.structs.fields(kind) if field.required]
        needed = [one for one, how in other.__struct_by_name__.items() if how.default is how.default_factory]
        assert sorted(needed) == sorted(required)


def test_everything_that_is_used_of_msgspec_is_there(twin: Twin) -> None:
    """GIVEN every name of msgspec in our sources WHEN the stand-in is asked for it THEN it has it."""
    other = twin("msgspec")
    used = set()
    for path in SOURCE.rglob("*.py"):
        if "stand_in" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "msgspec":
                used |= {".".join([*(node.module or "").split(".")[1:], alias.name]) for alias in node.names}
            elif isinstance(node, ast.Attribute) and re.fullmatch(r"msgspec(\.\w+)+", ast.unparse(node)):
                used.add(ast.unparse(node).removeprefix("msgspec."))
    assert {"msgpack.encode", "Struct", "structs.replace"} <= used
    for name in used:
        found: Any = other
        for part in name.split("."):
            assert hasattr(found, part), f"msgspec.{name}"
            found = getattr(found, part)


def behaviour(package: Any) -> list[Any]:
    """What our code may see of structs, as values that can be compared."""

    class Base(package.Struct, frozen=True, tag="base"):
        x: int = 0

    class Below(Base, tag="below", kw_only=True):
        z: list[int]

    class Open(package.Struct):
        a: int
        b: dict[str, int] = {}  # noqa: RUF012

    class Row(package.Struct, frozen=True, array_like=True, gc=False):
        a: int
        b: float = 1.0

    def tried(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (TypeError, AttributeError) as error:
            return type(error)

    one, other = Open(1), Open(1)
    one.b["k"] = 1
    replace = package.structs.replace
    return [
        other.b, one == other, one == Open(1, {"k": 1}), Base(1) == Base(1), Base(1) == Below(x=1, z=[]),
        hash(Row(1)) == hash(Row(1)), {Row(1): 1}[Row(1)], tried(lambda: hash(one)), tried(lambda: hash(Below(z=[]))),
        repr(Below(1, z=[2])), repr(Row(1)), replace(Row(1), b=2.0) == Row(1, 2.0), tried(lambda: replace(Row(1), c=1)),
        tried(lambda: Row()), tried(lambda: Row(1, 2, 3)), tried(lambda: Below(1, [2])), tried(lambda: Base(y=1)),
        tried(lambda: setattr(Base(), "x", 1)), tried(lambda: delattr(Base(), "x")),
        tried(lambda: setattr(one, "q", 1)),
        tried(lambda: Base() < Base()), package.structs.asdict(Below(1, z=[2])), package.structs.astuple(Row(4)),
        [field.name for field in package.structs.fields(Open)], copy.copy(one) == one, copy.deepcopy(one) == one,
        Base.__match_args__, Below.__match_args__, package.msgpack.encode([Below(1, z=[2]), Row(1), Base(), one]),
        package.to_builtins((Below(1, z=[2]), Row(1), {1: b"x"}, {3})),
        tried(lambda: type("Bad", (package.Struct,), {"__annotations__": {"a": "list"}, "a": [1]})),
        tried(lambda: type("Bad", (package.Struct,), {"__annotations__": {"a": int, "b": int}, "a": 1})),
        dict.fromkeys([Base(1), Base(1)]).__len__(),
    ]  # fmt: skip


def test_structs_behave_alike(twin: Twin) -> None:
    assert behaviour(twin("msgspec")) == behaviour(msgspec)


def test_structs_can_be_pickled(twin: Twin) -> None:
    theirs = twin("breakranks.snapshot.model")
    with Asked(twin, "msgspec", "msgspec._struct", "breakranks.snapshot.model"):
        frame = theirs.Frame("f", "x.py", 1)
        assert pickle.loads(pickle.dumps(frame)) == frame


def test_types_that_it_does_not_know_are_told_at_once(twin: Twin) -> None:
    other = twin("msgspec")
    with pytest.raises(TypeError, match="complex"):
        other.msgpack.decode(b"\x01", type=complex)
    with pytest.raises(TypeError, match="rename"):
        type(other.Struct)("X", (other.Struct,), {}, rename="camel")
