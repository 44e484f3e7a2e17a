"""What runs inside a rank of torch, in real jobs of two ranks: timeouts, refusals, FSDP, values, where a thread is."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from support.stalls import undisturbed

from .running import HERE, Launch

pytest.importorskip("torch")

PROGRAM = str(HERE / "rank_torch_program.py")
# The program's checks by the way it is started; all start at once, since they sleep most of the time.
STARTS = {"guards": "OFF", "plain": "OFF", "detail": "DETAIL"}
NEEDS_BOTH = "needs ranks 0-1; rank {} would not take part"
Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What both ranks found, by check. Most of it is about timeouts."""
    return undisturbed(lambda: _run(tmp_path_factory), 3)


def _run(tmp_path_factory: pytest.TempPathFactory) -> Found:
    with ExitStack() as launches:
        started = []
        for what, debug in STARTS.items():
            launch = launches.enter_context(Launch(tmp_path_factory.mktemp(what)))
            started.append(launch)
            launch.by_hand(2, PROGRAM, what, env={"TORCH_DISTRIBUTED_DEBUG": debug, "TORCH_FR_BUFFER_SIZE": "2000"})
        return {name: both for launch in started for name, both in _collected(launch).items()}


def _collected(launch: Launch) -> Found:
    for rank in launch.started:
        rank.wait(timeout=300)
    files = [launch.folder / f"found.{rank}.json" for rank in (0, 1)]
    assert all(file.exists() for file in files), launch.output[-3000:]
    ranks = [json.loads(file.read_text()) for file in files]
    return {name: [ranks[0][name], ranks[1][name]] for name in ranks[0]}


def check(found: Found, name: str) -> list[dict[str, Any]]:
    both = found[f"check_{name}"]
    assert all(isinstance(one, dict) for one in both), both
    return both


def test_ranks_may_be_late_while_timeouts_are_extended(found: Found) -> None:
    for result in check(found, "timeouts"):
        assert result["notes"] == ["Gloo's send and receive keep their timeouts; the shortest is 3 s."]
        assert result["extended"] is True
        assert [result[what] for what in ("collective", "making", "store")] == ["fine"] * 3


def test_timeouts_are_as_before_once_restored(found: Found) -> None:
    for result in check(found, "timeouts"):
        assert result["restored"] == {"extended": False, "function": True, "store": 3.0}
    waited = check(found, "timeouts")[1]
    assert waited["exchange again"] == "RuntimeError after 3 s"
    assert waited["made again"] == "RuntimeError after 2 s"


def test_the_checks_of_detail_keep_their_timeout_and_that_is_said(found: Found) -> None:
    kept = (
        "Gloo's send and receive, and the check of TORCH_DISTRIBUTED_DEBUG=DETAIL before each collective keep their "
        "timeouts; the shortest is 3 s."
    )
    for result in check(found, "detail"):
        assert result["kind"] == "_ProcessGroupWrapper"
        assert result["notes"] == [kept]
        assert result["making"] == "fine"
    assert check(found, "detail")[1]["again"] == "RuntimeError after 3 s"


def test_a_collective_of_one_rank_is_refused_before_it_begins(found: Found) -> None:
    for rank, result in enumerate(check(found, "guarding")):
        for name, said in result["alone"].items():
            assert said.endswith(NEEDS_BOTH.format(1 - rank)), (name, said)
        assert result["alone"]["all_gather_into_tensor"].startswith("all_gather_into_tensor of group 'default_pg'")
        assert set(result["both"].values()) == {""}
        assert result["own group"] == result["local"] == ""


def test_a_source_is_refused_before_it_runs(found: Found) -> None:
    for rank, result in enumerate(check(found, "precheck")):
        for source, said in result["bad"].items():
            assert said is not None and said.endswith(NEEDS_BOTH.format(1 - rank)), (source, said)
        assert result["bad"]["m.layers[0](x)"].startswith("forward of Block (FSDP2) ")
        assert result["bad"]["ddp(x)"].startswith("forward of Net (DDP) ")
        assert {source: said for source, said in result["good"].items() if said is not None} == {}
        assert result["both"] == []
        assert result["ran"] == []


def test_a_model_trains_on_as_if_its_forward_had_never_been_refused(found: Found) -> None:
    for result in check(found, "forward_refused"):
        assert all(said.startswith("forward of ") for said in result["said"]), result["said"]
        assert result["states"] == ["IDLE"] * 3
        assert result["touched"] == result["untouched"]


def test_it_is_told_which_parameters_are_gathered(found: Found) -> None:
    for result in check(found, "fsdp"):
        for way in ("forward", "backward"):
            inside = result[way]
            assert (inside["kind"], inside["module"], inside["class"]) == ("FSDP2", "layers.1", "Block")
            assert (inside["pass"], inside["gathered"], inside["gathered_count"]) == (way, ["layers.1"], 1)
            assert any("'layers.1' are gathered" in sentence for sentence in inside["safe"])
        assert (result["FSDP1"]["kind"], result["FSDP1"]["class"]) == ("FSDP1", "Net")
        assert result["DDP"] is None
        assert result["outside"] is None


def test_a_sharded_parameter_is_described_by_its_shard(found: Found) -> None:
    first, second = (result["weight"] for result in check(found, "fsdp"))
    for weight in (first, second):
        assert (weight["type"], weight["shape"], weight["count"]) == ("DTensor", [4, 4], 8)
        assert weight["local"] == "shard (2, 4) of (4, 4), Shard(0)"
    assert first["digest"] != second["digest"]


def test_a_waiting_thread_is_seen_in_its_collective(found: Found) -> None:
    seen = check(found, "where")[1]
    for name, op, group in (
        ("all_gather_into_tensor", "all_gather_into_tensor", "pair"),
        ("recv", "recv", "default_pg"),
        ("all_gather_object", "all_gather_object", "default_pg"),
        ("wait", "all_reduce", "pair"),
    ):
        got = seen[name]
        assert (got["op"], got["group"], got["members"]) == (op, group, [0, 1])
        assert (got["file"], got["function"]) == (PROGRAM, "check_where.<locals>.<lambda>")
    assert [frame["function"] for frame in seen["frames"]][-2:] == ["main", "<module>"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, {"type": "int", "value": 3}),
        (True, {"type": "bool", "value": True}),
        (float("-inf"), {"type": "float", "value": "-inf"}),
        (2**60, {"type": "int", "value": str(2**60)}),
    ],
)
def test_numbers(value: object, expected: dict[str, Any]) -> None:
    from breakranks.rank.value_summary import describe

    assert describe(value) == {"kind": "number", **expected}
    assert describe("3") is None


def test_tensors() -> None:
    import numpy
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from breakranks.rank.value_summary import describe

    def figures(value: object, *names: str) -> list[Any]:
        told = describe(value)
        assert told is not None
        json.dumps(told, allow_nan=False)
        return [told.get(name) for name in names]

    def note(value: object) -> str:
        return str(figures(value, "note")[0])

    odd = torch.tensor([1.0, 3.0, float("nan"), float("inf")], requires_grad=True)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float8_e5m2):
        assert figures(odd.to(dtype), "nan", "inf", "min", "max", "mean") == [1, 1, 1.0, 3.0, 2.0]
    assert figures(torch.tensor([True]), "dtype", "value") == ["bool", True]
    assert figures(torch.tensor([2**60]), "max") == [str(2**60)]
    turned = torch.arange(6.0).reshape(2, 3).t()
    assert figures(turned, "digest") == figures(turned.contiguous(), "digest") == figures(turned.numpy(), "digest")
    assert figures(turned, "digest") != figures(turned + 1, "digest")
    assert figures(numpy.float32(2), "kind", "type", "value") == ["number", "float32", 2.0]
    assert figures(torch.nn.Parameter(torch.ones(2)), "type", "shape", "device") == ["Parameter", [2], "cpu"]
    freed = torch.ones(10)
    freed.untyped_storage().resize_(0)
    assert "memory is freed" in note(freed)
    assert "meta" in note(torch.ones(2, device="meta"))
    assert "sparse" in note(torch.eye(2).to_sparse())
    assert "objects" in note(numpy.array([None]))
    with FakeTensorMode():
        assert "fake" in note(torch.ones(2))
        assert figures(turned, "max") == [5.0]
