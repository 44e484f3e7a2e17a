"""Untrusted dumps: valid ones are explained, invalid ones are named and left out, and no code in them runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakranks.cli.main import main
from breakranks.errors import SnapshotError, UsageError
from breakranks.explain.verdict import explain
from breakranks.observe.dump_snapshot import load
from breakranks.observe.recorder.dump_folder import rank_of
from breakranks.observe.recorder.dump_parse import read
from breakranks.observe.recorder.safe_unpickle import DumpError, decode
from breakranks.rankset import RankSet
from breakranks.show.wording.action_wording import action_text
from breakranks.show.wording.finding_wording import summary
from breakranks.snapshot.recorder_tables import Track
from breakranks.snapshot.snapshot_file import pack, unpack
from support.values import replace

from .recordings import START, Call, dump, pending, write

DATA = Path(__file__).parents[1] / "data" / "flight"
WORLD = {"default_pg": range(4)}
MISSING = {0: [Call("default_pg"), pending("default_pg")], 1: [Call("default_pg")], 2: [], 3: []}
MISSING[2] = MISSING[3] = MISSING[0]


def verdict(folder: Path) -> tuple[str, str] | None:
    found = explain(load(str(folder))).verdict
    return (found.kind, found.culprits) if found is not None else None


def problems(folder: Path) -> str:
    return "\n".join(one.what for one in load(str(folder)).problems)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_folder_of_dumps_is_explained(tmp_path: Path, as_json: bool) -> None:
    assert verdict(write(tmp_path, MISSING, WORLD, as_json=as_json)) == ("missing-from-collective", "1")


def test_dumps_may_be_in_folders_of_their_hosts(tmp_path: Path) -> None:
    write(tmp_path / "n1", {rank: MISSING[rank] for rank in (0, 1)}, WORLD)
    write(tmp_path / "n2", {rank: MISSING[rank] for rank in (2, 3)}, WORLD)
    found = explain(load(str(tmp_path))).verdict
    assert found is not None and (found.kind, found.culprits) == ("missing-from-collective", "1")
    assert [action_text(action) for action in found.next] == [f"breakranks collectives {tmp_path} --history 8"]


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_in_a_pickle_is_not_run(tmp_path: Path, protocol: int) -> None:
    folder = write(tmp_path / "dumps", MISSING, WORLD)
    top = dump(MISSING[3], WORLD)
    top["entries"].append(Evil(tmp_path / "ran"))
    (folder / "nccl_trace_rank_3").write_bytes(pickle.dumps(top, protocol))
    assert verdict(folder) == ("missing-from-collective", "1")
    assert not (tmp_path / "ran").exists()
    assert "nccl_trace_rank_3" in problems(folder)
    if protocol:
        assert "contains code (posix.mkdir)" in problems(folder)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "is empty"),
        (b"\x80\x02}q\x00(X\x07\x00\x00\x00version", "is truncated"),
        (b"\x80\x02]q\x00.", "contains a list"),
        (b"\x80\x02}q\x00.", "no list of entries"),
        (b'{"version": "2.10"', "is truncated"),
        (b'{"version": "2.10"}', "no list of entries"),
        (b"\x7fELF\x02\x01\x01", "neither a pickle nor JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (pickle.dumps({"version": "3.0", "entries": []}), "version 3.0"),
        (pickle.dumps({"entries": []}), "version none"),
        (pickle.dumps({"version": "2.10", "entries": [1, 2]}), "not records"),
        (b"\x80\x02K\x01r\xff\xff\xff\x7f.", ""),  # a memo of two billion places
        (b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.", "contains code (os.system)"),
    ],
)
def test_what_is_no_dump_is_named_and_left_out(tmp_path: Path, data: bytes, word: str) -> None:
    folder = write(tmp_path, MISSING, WORLD)
    (folder / "nccl_trace_rank_3").write_bytes(data)
    assert verdict(folder) == ("missing-from-collective", "1")
    assert "nccl_trace_rank_3" in problems(folder)
    assert word in problems(folder)


def test_a_small_file_cannot_take_all_memory(tmp_path: Path) -> None:
    folder = write(tmp_path, MISSING, WORLD)
    bomb = b"]" + b"".join(
        b"q%c" % i + b"(" + b"h%c" % i * 20 + b"l" for i in range(30)
    )  # lists of 20 of the one before
    (folder / "nccl_trace_rank_3").write_bytes(
        b"\x80\x02}X\x07\x00\x00\x00versionX\x04\x00\x00\x002.10sX\x07\x00\x00\x00entries(}X\x0b\x00\x00\x00input_sizes"
        + bomb
        + b"sls."
    )
    assert verdict(folder) == ("missing-from-collective", "1")
    assert "nccl_trace_rank_3" in problems(folder)


def test_two_dumps_of_one_rank(tmp_path: Path) -> None:
    folder = write(tmp_path, MISSING, WORLD)
    old = write(tmp_path / "before", {1: MISSING[0]}, WORLD, start=START - 10**13)
    assert verdict(folder) == ("missing-from-collective", "1")
    assert f"{old}/nccl_trace_rank_1 is a second dump of rank 1" in problems(folder)


def test_dumps_of_another_job(tmp_path: Path) -> None:
    folder = write(tmp_path, MISSING, WORLD)
    write(tmp_path / "other", {5: MISSING[0]}, {"default_pg": range(8)})
    assert verdict(folder) == ("missing-from-collective", "1")
    assert "is from another job: its world is ranks 0-7, the others' 0-3" in problems(folder)


def test_a_dump_left_over_from_an_earlier_run(tmp_path: Path) -> None:
    folder = write(tmp_path, {rank: MISSING[rank] for rank in (0, 1, 2)}, WORLD)
    write(folder, {3: [Call("default_pg")] * 9}, WORLD, start=START - 10**14)
    assert verdict(folder) == ("missing-from-collective", "1")
    assert "left over from an earlier run" in problems(folder)


def test_nothing_but_garbage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank_0").write_bytes(b"garbage")
    assert main(["why", str(tmp_path)]) == 2
    assert "no dump in" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="contains no dumps"):
        load(str(tmp_path / "empty"))


def test_pipes_and_folders_are_not_waited_for(tmp_path: Path) -> None:
    folder = write(tmp_path, MISSING, WORLD)
    os.mkfifo(folder / "nccl_trace_rank_9")
    (folder / "rank_10").mkdir()
    assert verdict(folder) == ("missing-from-collective", "1")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_13", 13),
        ("rank7.json", 7),
        ("fr_0003.pkl", 3),
        ("12", 12),
        ("train.log", None),
        ("a1.txt", None),
    ],
)
def test_the_rank_is_in_the_name(name: str, rank: int | None) -> None:
    assert rank_of(name) == rank


def test_gloo_names_no_members(tmp_path: Path) -> None:
    folder = write(tmp_path, MISSING, WORLD, backend="gloo")
    assert verdict(folder) == ("missing-from-collective", "1")


def test_a_snapshot_of_dumps_goes_into_a_file_and_back(tmp_path: Path) -> None:
    snapshot = load(str(write(tmp_path, MISSING, WORLD)))
    assert unpack(pack(snapshot)) == snapshot


def test_an_older_version(tmp_path: Path) -> None:
    for rank, calls in MISSING.items():
        top = dump(calls, WORLD, version="1.5")
        for entry in top["entries"]:
            entry["seq_id"] = entry.pop("collective_seq_id")
            for field in ("p2p_seq_id", "thread_id", "thread_name", "retired", "is_p2p", "input_dtypes"):
                del entry[field]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(top))
    assert verdict(tmp_path) == ("missing-from-collective", "1")


@given(st.binary(max_size=300))
def test_garbage_is_an_error_of_ours(data: bytes) -> None:
    try:
        decode(data)
    except DumpError:
        pass


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200)
@given(st.data())
def test_odd_values_in_entries_are_an_error_of_ours_or_passed_over(data: st.DataObject) -> None:
    top = dump(MISSING[0], WORLD)
    field = data.draw(st.sampled_from(sorted(top["entries"][0])))
    top["entries"][data.draw(st.integers(0, 1))][field] = data.draw(_VALUES)
    top["pg_config"] = data.draw(st.just(top["pg_config"]) | _VALUES)
    try:
        read(json.dumps(top).encode())
    except DumpError:
        pass


def test_groups_without_names_cannot_be_told_apart(tmp_path: Path) -> None:
    for rank, calls in MISSING.items():
        top = dump(calls, WORLD)
        for entry in top["entries"]:
            entry["process_group"] = ("", "")
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(top))
    with pytest.raises(UsageError, match="TORCH_DISTRIBUTED_DEBUG=DETAIL"):
        load(str(tmp_path))


TRUTH = json.loads((DATA / "truth.json").read_text())


@pytest.mark.parametrize("name", [name for name, one in TRUTH.items() if one.get("decidable", True)])
def test_dumps_of_real_jobs(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / name, tmp_path / name, copy_function=shutil.copyfile)
    truth = TRUTH[name]
    found = explain(load(str(folder))).verdict
    assert (found.kind if found else None) == truth["kind"]
    if found is not None:
        assert RankSet.parse(found.culprits) == RankSet.parse(truth["culprits"])
        assert RankSet.parse(found.victims) == RankSet.parse(truth["victims"])
        if truth["kind"] == "missing-from-collective":
            assert f"{truth['op']} #{truth['seq']}" in summary(found)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: replace(t, group=99),
        lambda t: replace(t, history=t.history[:-1]),
        lambda t: replace(t, history=t.history + b"\xff\xff\xff\x7f"),
        lambda t: replace(t, completed=10**15),
        lambda t: replace(t, last=replace(t.last, stack=999)),
        lambda t: replace(t, last=replace(t.last, operation=-1)),
        lambda t: replace(t, last=replace(t.last, created=float("nan"))),
    ],
)
def test_a_file_whose_recorders_point_nowhere_is_refused(tmp_path: Path, spoil: Callable[[Track], Track]) -> None:
    snapshot = load(str(write(tmp_path, MISSING, WORLD)))
    first = snapshot.ranks[0]
    assert first.recorder is not None
    tracks = tuple(map(spoil, first.recorder.tracks))
    bad = replace(
        snapshot, ranks=(replace(first, recorder=replace(first.recorder, tracks=tracks)), *snapshot.ranks[1:])
    )
    with pytest.raises(SnapshotError, match="contradicts itself"):
        unpack(pack(bad))
