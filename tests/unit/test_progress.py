"""Which rank waits for which, from histories alone: each test is a small job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from breakranks.explain.collectives.collective_progress import CollectiveProgress
from breakranks.explain.collectives.root_causes import causes
from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.verdict import explain
from breakranks.observe.dump_snapshot import load
from breakranks.show.wording.finding_wording import evidence_lines, summary

from .recordings import Call, pending, write

WORLD = {"world": range(4)}
MESH = {"default_pg": range(4), "tp": (0, 1), "tq": (2, 3), "dp": (0, 2), "dq": (1, 3)}


def told(
    folder: Path, calls: Mapping[int, Sequence[Call]], groups: Mapping[str, Sequence[int]], **more: Any
) -> Diagnosis:
    return explain(load(str(write(folder, calls, groups, **more))))


def test_one_rank_has_not_come(tmp_path: Path) -> None:
    done = [Call("world")] * 3
    found = told(tmp_path, {0: [*done, pending("world")], 1: done, 2: [*done, pending("world")]}, {"world": range(3)})
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.culprits, found.verdict.victims) == (
        "missing-from-collective",
        "1",
        "0,2",
    )
    assert "rank 1 has not entered all_reduce #4 of group 0 (0-2)" not in summary(found.verdict)  # it has a description
    assert "rank 1 has not entered all_reduce #4 of world" in summary(found.verdict)
    assert found.verdict.confidence == "certain"


def test_the_chain_goes_through_other_groups(tmp_path: Path) -> None:
    calls = {0: [pending("tp")], 1: [], 2: [pending("dp")], 3: [pending("tq")]}
    found = told(tmp_path, calls, MESH)
    assert found.verdict is not None
    assert (found.verdict.culprits, found.verdict.victims) == ("1", "0,2-3")
    assert "2 of them through 2 other groups" in summary(found.verdict)
    assert any("rank 2 waits in all_reduce #1 of dp for rank 0" in line for line in evidence_lines(found.verdict))


def test_how_far_behind(tmp_path: Path) -> None:
    calls = {0: [*[Call("w")], *[pending("w")] * 5], 1: [*[Call("w")], *[pending("w")] * 5], 2: [Call("w")]}
    found = told(tmp_path, calls, {"w": range(3)})
    assert found.verdict is not None
    assert found.verdict.culprits == "2"
    assert "#2 of w" in summary(found.verdict)  # the first call that it has not entered, not the last that was made


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (pending("world", "all_gather"), ("all_gather", "all_reduce")),
        (pending("world", size=(5,)), ("[4]", "[5]")),
        (pending("world", dtype="Half"), ("Float", "Half")),
    ],
)
def test_calls_that_differ(tmp_path: Path, odd: Call, words: tuple[str, ...]) -> None:
    even = [Call("world"), pending("world")]
    found = told(tmp_path, {0: even, 1: even, 2: [Call("world"), odd], 3: even}, WORLD)
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.culprits) == ("collective-mismatch", "2")
    assert all(word in summary(found.verdict) for word in words)
    assert "#2" in summary(found.verdict)


def test_of_two_sides_as_large_neither_is_blamed(tmp_path: Path) -> None:
    a, b = [pending("world")], [pending("world", "barrier")]
    found = told(tmp_path, {0: a, 1: a, 2: b, 3: b}, WORLD)
    assert found.verdict is not None
    assert (found.verdict.culprits, found.verdict.victims) == ("0-3", "")


def test_a_difference_that_all_went_through_is_no_reason(tmp_path: Path) -> None:
    before = {0: Call("world", size=(1,)), 1: Call("world", size=(2,)), 2: Call("world", size=(1,)), 3: Call("world")}
    calls = {r: [one, Call("world"), *([pending("world")] if r != 3 else [])] for r, one in before.items()}
    found = told(tmp_path, calls, WORLD)
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.culprits) == ("collective-mismatch", "1") or (
        found.verdict.culprits == "3"
    ), summary(found.verdict)


def test_sizes_of_all_to_all_may_differ_in_rows_but_not_in_width(tmp_path: Path) -> None:
    rows = {r: [pending("world", "all_to_all", (10 + r, 8))] for r in range(4)}
    assert told(tmp_path / "well", rows, WORLD).verdict is None
    rows[2] = [pending("world", "all_to_all", (12, 9))]
    found = told(tmp_path / "odd", rows, WORLD).verdict
    assert found is not None and (found.kind, found.culprits) == ("collective-mismatch", "2")


def test_two_groups_entered_in_opposite_order(tmp_path: Path) -> None:
    groups = {"a": (0, 1), "b": (0, 1)}
    found = told(tmp_path, {0: [pending("a")], 1: [pending("b")]}, groups)
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.culprits) == ("collective-order-deadlock", "0-1")
    assert found.verdict.confidence == "likely"  # one of them may also have skipped a call
    assert "#1 of a" in summary(found.verdict) and "#1 of b" in summary(found.verdict)


def test_the_same_when_both_are_enqueued_is_only_likely(tmp_path: Path) -> None:
    groups = {"a": (0, 1), "b": (0, 1)}
    calls = {0: [pending("a"), pending("b")], 1: [pending("b"), pending("a")]}
    found = told(tmp_path, calls, groups).verdict
    assert found is not None
    assert (found.kind, found.culprits, found.confidence) == ("collective-order-deadlock", "0-1", "likely")


def test_everyone_receives_first(tmp_path: Path) -> None:
    calls = {r: [pending("world", f"recv {r}<-{(r + 1) % 4}")] for r in range(4)}
    found = told(tmp_path, calls, WORLD).verdict
    assert found is not None
    assert (found.kind, found.culprits, found.confidence) == ("p2p-deadlock", "0-3", "certain")


def test_a_recv_that_nobody_sends_to(tmp_path: Path) -> None:
    found = told(tmp_path, {0: [pending("world", "recv 0<-2")], 1: [], 2: [], 3: []}, WORLD).verdict
    assert found is not None
    assert (found.kind, found.culprits, found.victims) == ("missing-from-collective", "2", "0")
    assert "rank 2 has not called send for the recv of rank 0" in summary(found)


def test_ranks_in_sends_are_those_of_the_group(tmp_path: Path) -> None:
    groups = {"default_pg": range(8), "pp": (3, 7)}
    calls = {r: [] for r in range(8)}
    calls[3] = [pending("pp", "recv 0<-1")]
    found = told(tmp_path, calls, groups).verdict
    assert found is not None and found.culprits == "7"


def test_a_ring_that_has_wrapped_loses_nothing_that_counts(tmp_path: Path) -> None:
    done = [Call("w")] * 9
    calls = {0: [*done, pending("w")], 1: done, 2: [*done, pending("w")]}
    found = told(tmp_path, calls, {"w": range(3)}, forgotten={0: 7, 1: 2, 2: 5}).verdict
    assert found is not None
    assert found.culprits == "1" and "#10" in summary(found)


def test_a_dump_that_is_missing(tmp_path: Path) -> None:
    calls = {0: [pending("world")], 1: [pending("world")], 3: [pending("world")]}
    found = told(tmp_path, calls, WORLD).verdict
    assert found is not None
    assert (found.kind, found.culprits, found.confidence) == ("missing-from-collective", "2", "likely")
    assert "no dump" in summary(found)


def test_dumps_of_a_job_that_runs_on_say_nothing(tmp_path: Path) -> None:
    # The dump of rank 2 is older: the others have completed a call that it had not made then.
    calls = {0: [Call("w")] * 8 + [pending("w")], 1: [Call("w")] * 8, 2: [Call("w")] * 5}
    found = told(tmp_path, calls, {"w": range(3)}).verdict
    assert found is not None and found.culprits == "1"
    ledger = CollectiveProgress(load(str(tmp_path)))
    assert str(ledger.stale) == "2"


def test_all_are_in_it_and_it_has_not_ended(tmp_path: Path) -> None:
    found = told(tmp_path, {r: [pending("world")] for r in range(4)}, WORLD)
    assert found.verdict is None
    assert [one.kind for one in found.findings] == ["collective-stalled"]
    assert found.findings[0].informational


def test_two_causes_are_both_told(tmp_path: Path) -> None:
    calls = {0: [pending("tp")], 1: [], 2: [pending("tq")], 3: []}
    found = told(tmp_path, calls, MESH)
    assert {one.culprits for one in found.findings} == {"1", "3"}


def test_culprits_that_are_a_whole_group_are_named_so(tmp_path: Path) -> None:
    calls = {0: [pending("default_pg")], 1: [pending("default_pg")], 2: [Call("tq")], 3: [Call("tq")]}
    found = told(tmp_path, calls, MESH).verdict
    assert found is not None and found.culprits == "2-3"
    assert "ranks 2-3 are exactly the members of tq" in evidence_lines(found)[0]


def test_holes_in_the_numbers_are_no_difference(tmp_path: Path) -> None:
    # monitored_barrier takes two numbers and leaves no record.
    import pickle

    folder = write(tmp_path, {r: [Call("w")] * 3 for r in range(2)}, {"w": range(2)})
    for rank in range(2):
        path = folder / f"nccl_trace_rank_{rank}"
        top = pickle.loads(path.read_bytes())
        for entry in top["entries"][1:]:
            entry["collective_seq_id"] += 2
        top["entries"][-1]["state"] = "scheduled"
        path.write_bytes(pickle.dumps(top))
    ledger = CollectiveProgress(load(str(folder)))
    assert ledger.reached(0, 0) == 5
    assert not ledger.mismatches
    assert [cause.kind for cause in causes(ledger)] == ["collective-stalled"]
