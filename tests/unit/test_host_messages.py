"""Messages between the controller and hosts: each side reads what the other writes, and a host needs no package."""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from breakranks.errors import SnapshotError
from breakranks.hosts.host_message_checks import MAX_HOST_SNAPSHOT_BYTES, report_of, snapshot_of
from breakranks.hosts.host_messages import (
    REPORTS,
    REQUESTS,
    Evaluate,
    FindJobs,
    JobsFound,
    Ping,
    RequestFailed,
    SelectJob,
    decode_request,
    encode,
    pack_snapshot,
)
from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
from breakranks.snapshot.model import Job, Missing, Problem, Snapshot
from breakranks.snapshot.recorder_tables import Entry, Group, Operation, Recorder, Track, Transfer, pack_rows
from support.values import replace
from unit.test_layers import FILES, SOURCE, imports_in
from unit.test_snapshot_file import example

VALUES: dict[str, Any] = {
    "int": 7, "str": "ä", "bool": True, "float": 1.25, "bytes": b"\0\xff", "str | None": "x",
    "tuple[str, str] | None": ("1", "2"), "tuple[int, ...]": (1, 2), "tuple[str, ...]": ("a",),
    "dict[str, Any]": {"a": [1, {"b": None}]}, "tuple[dict[str, Any], ...]": ({"a": [1, 2]},),
    "SelectJob | None": SelectJob("k", None, False),
}  # fmt: skip


def whole() -> Snapshot:
    """A snapshot with a value of every kind that one can have."""
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
    first = replace(made.ranks[0], recorder=recorder)
    groups = (Group(name="0", description="default_pg", ranks="0-3", timeout=600.0),)
    operations = (Operation(""), Operation("all_reduce", "[[4]]", "[[4]]", "Float"))
    return replace(made, ranks=(first, *made.ranks[1:]), groups=groups, operations=operations)


def every(kinds: dict[str, type]) -> Iterator[Any]:
    """One message of each kind with a value in every field, and one with its defaults."""
    for kind in kinds.values():
        fields = dataclasses.fields(kind)
        needed = {one.name for one in fields if one.default is one.default_factory is dataclasses.MISSING}
        values = {one.name: VALUES[str(one.type)] for one in fields if str(one.type) in VALUES}
        if needed <= values.keys():
            yield kind(**values)
            yield kind(**{name: values[name] for name in needed})


@pytest.mark.parametrize("request_", list(every(REQUESTS)), ids=repr)
def test_a_host_reads_what_the_controller_writes(request_: Any) -> None:
    assert decode_request(encode(request_)) == request_


@pytest.mark.parametrize("report", list(every(REPORTS)), ids=repr)
def test_the_controller_reads_what_a_host_writes(report: Any) -> None:
    assert report_of(encode(report)) == report


def test_every_message_has_one_kind() -> None:
    assert len(list(every(REQUESTS))) == 2 * len(REQUESTS)
    assert len(list(every(REPORTS))) == 2 * len(REPORTS) - 4  # jobs and steps of the check are tested elsewhere
    assert REQUESTS.keys() & REPORTS.keys() == {"data", "shut"}  # which go both ways


def test_jobs_that_were_found_travel() -> None:
    job = FoundJob(
        Job(key="k", launcher="torchrun", world_size=3, ids={"a": "b"}),
        (FoundRank(0, 10), FoundRank(1, 11, 1)),
        (Missing(ranks="2", reason="absent"),),
    )
    report = JobsFound(1, LocalJobs((job,), (Problem("p", "r"),)))
    assert report_of(encode(report)) == report


@pytest.mark.parametrize(
    "text",
    [
        b"", b"1", b"[]", b"null", b"{}", b"\xff", b"[" * 200_000, b'{"type":5}', b'{"type":"exec","code":"1"}',
        b'{"type":"hello","id":1}', b'{"type":"find"}', b'{"type":"find","id":"1"}', b'{"type":"find","id":true}',
        b'{"type":"find","id":1,"slurm":["1"]}', b'{"type":"find","id":1,"slurm":["1",2]}',
        b'{"type":"sample","id":1,"look":5}', b'{"type":"sample","id":1,"look":{}}',
        b'{"type":"data","link":1,"data":"=x"}', b'{"type":"data","link":1,"data":5}',
        b'{"type":"end","id":1,"pids":{"1":2}}', b'{"type":"end","id":1,"pids":[1.5]}',
        b'{"type":"eval","id":1,"key":"","ranks":null,"takers":"","question":[],"deadline":1.0}',
    ],
)  # fmt: skip
def test_what_is_not_a_request_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode_request(text)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"type":5}', b'{"type":"find","id":1}', b'{"type":"clock","time":NaN}', b'{"type":"clock"}',
     b'{"type":"clock","time":1e999}', b'{"type":"told","id":1,"told":[5]}', b"[" * 200_000,
     b'{"type":"told","id":1,"told":[{"a":' + b"[" * 200_000],
)  # fmt: skip
def test_what_is_not_a_report_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        report_of(text)


def test_fields_that_are_not_known_are_passed_over() -> None:
    assert decode_request(b'{"type":"find","id":1,"later":2}') == FindJobs(1)
    assert report_of(b'{"type":"failed","id":1,"what":"no","later":2}') == RequestFailed(1, "no")
    assert decode_request(b'{"type":"ping"}') == Ping()


def test_whole_numbers_are_times_too() -> None:
    asked = decode_request(
        b'{"type":"eval","id":1,"key":"","ranks":null,"takers":"","question":{"source":"x"},"deadline":1}'
    )
    assert isinstance(asked, Evaluate)


def test_a_name_that_is_not_utf8_spoils_nothing_else() -> None:
    assert report_of(encode(RequestFailed(1, "x\udcff", "y"))) == RequestFailed(1, "x?", "y")
    assert snapshot_of(pack_snapshot(replace(whole(), made_by="x\udcff"))) == replace(whole(), made_by="x?")


def test_numbers_that_are_not_finite_are_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        pack_snapshot(replace(whole(), time=math.nan))


# ---- snapshots


def test_a_snapshot_travels() -> None:
    assert snapshot_of(pack_snapshot(whole())) == whole()
    assert snapshot_of(pack_snapshot(example())) == example()


def packed(text: bytes) -> bytes:
    return zlib.compress(text)


GOOD = zlib.decompress(pack_snapshot(example()))
REFUSED = {
    "nothing": (b"", "cut off"),
    "no data of zlib": (b"BREAKRANKS", "cannot be read"),
    "cut off": (pack_snapshot(example())[:-10], "cut off"),
    "not JSON": (packed(b"x"), "cannot be read"),
    "another type": (packed(json.dumps({**json.loads(GOOD), "ranks": 5}).encode()), "cannot be read"),
    "deep": (packed(b'{"launcher":{"children":[' * 100_000), "cannot be read"),
    "nan": (packed(json.dumps({**json.loads(GOOD), "time": math.nan}).encode()), "cannot be read"),
    "another time": (packed(json.dumps({**json.loads(GOOD), "time": 1e300}).encode()), "contradicts itself"),
    "no such frame": (pack_snapshot(replace(example(), stacks=((), (77,)))), "contradicts itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_snapshot_is_refused(name: str) -> None:
    data, words = REFUSED[name]
    with pytest.raises(SnapshotError, match=words):
        snapshot_of(data)


def test_one_that_unpacks_to_too_much_is_refused() -> None:
    packer = zlib.compressobj(1)
    bomb = (
        b"".join(packer.compress(bytes(1 << 24)) for _ in range((MAX_HOST_SNAPSHOT_BYTES >> 24) + 1)) + packer.flush()
    )
    with pytest.raises(SnapshotError, match="larger than any"):
        snapshot_of(bomb)


# ---- what a host has


def modules_of(name: str) -> set[str]:
    """The module of breakranks that a name is of, and the packages above it."""
    found = set()
    while name.startswith("breakranks"):
        path = SOURCE.joinpath(*name.split(".")[1:])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file in FILES:
                found.add(str(file))
        name = name.rpartition(".")[0]
    return found


def test_an_agent_needs_the_standard_library_alone() -> None:
    """GIVEN all that an agent imports, in functions as well, THEN msgspec, which is not sent, is not among it."""
    left = modules_of("breakranks.hosts.host_agent")
    known: set[str] = set()
    while left:
        path = left.pop()
        known.add(path)
        for one in imports_in(SOURCE / path):
            assert not one.module.startswith("msgspec"), f"{path}:{one.line}"
            left |= modules_of(one.module) - known
    assert {"sampler.py", "native_frames.py", "live_recorder.py", "rank_pdb.py"} <= {
        path.rpartition("/")[2] for path in known
    }
