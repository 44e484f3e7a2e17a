"""Stacks and flight recorders of live ranks, joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.verdict import explain
from breakranks.introspect.process_queries import join
from breakranks.observe.recorder.dump_columns import Config
from breakranks.observe.recorder.dump_parse import make
from breakranks.rankset import RankSet
from breakranks.show.wording.finding_wording import summary
from breakranks.snapshot.model import Call as SnapshotCall
from breakranks.snapshot.model import Rank, Snapshot, StackTable
from support.values import replace

from .jobs import C10D, LONG_SLEEP, World, lib, own
from .recordings import SECOND, Call, dump, pending

FSDP = "/venv/lib/python3.11/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"
NOW = 1001.0  # when the World's last sample was taken


def recorded(
    world: World, calls: Mapping[int, Sequence[Call]], groups: Mapping[str, Sequence[int]], *, ago: float = 30.0
) -> Snapshot:
    """The world's snapshot, with recorders whose last call was made ``ago`` seconds before the last sample."""
    snapshot = world.snapshot()
    config = {str(at): Config(name, RankSet(ranks)) for at, (name, ranks) in enumerate(groups.items())}
    dumps = {}
    for rank, its in calls.items():
        start = int((NOW - ago) * SECOND) - max(0, len(its) - 1) * SECOND
        pid = snapshot.ranks[rank].process.samples[-1].threads[0].tid
        top = dump(its, groups, backend="gloo", start=start)
        made = make(top, config, {140000000000000: pid})
        dumps[rank] = made._replace(recorder=replace(made.recorder, time=NOW + 0.1))
    stacks = StackTable()
    for row in snapshot.stacks:
        stacks.add(tuple(snapshot.frames[i] for i in row))
    recorders, rows, operations = join(dumps, stacks, RankSet(range(len(snapshot.ranks))))
    return replace(
        snapshot,
        ranks=tuple(replace(rank, recorder=recorders.get(rank.rank)) for rank in snapshot.ranks),
        groups=rows,
        operations=operations,
        frames=tuple(stacks.frames),
        stacks=tuple(stacks.stacks),
    )


def told(
    world: World, calls: Mapping[int, Sequence[Call]], groups: Mapping[str, Sequence[int]], ago: float = 30.0
) -> Diagnosis:
    return explain(recorded(world, calls, groups, ago=ago))


def four(asleep: int, left: float = 3600.0) -> World:
    world = World()
    for rank in range(4):
        if rank == asleep:
            world.add(world.thread(own("load_batch", 88), call=SnapshotCall("clock_nanosleep", left=left)))
        else:
            world.add(world.in_all_reduce())
    return world


def test_the_call_is_named_by_its_number_and_group() -> None:
    calls = {r: [Call("mesh_tp")] * 5 + ([pending("mesh_tp")] if r != 2 else []) for r in range(4)}
    found = told(four(2), calls, {"mesh_tp": range(4)}).verdict
    assert found is not None
    assert (found.kind, found.culprits, found.victims) == ("missing-from-collective", "2", "0-1,3")
    assert "has not entered all_reduce #6 of mesh_tp" in summary(found)
    assert "load_batch" in summary(found)


def test_a_rank_that_nobody_waits_for_is_not_blamed() -> None:
    # Rank 3 sleeps too, but is in no group that anybody waits in.
    world = World()
    world.add(world.in_all_reduce())
    world.add(world.thread(own("load_batch", 88), call=LONG_SLEEP))
    world.add(world.in_all_reduce())
    world.add(world.thread(own("serve_metrics", 12), call=LONG_SLEEP))
    calls = {0: [pending("workers")], 1: [], 2: [pending("workers")], 3: []}
    found = told(world, calls, {"workers": (0, 1, 2), "all": range(4)}).verdict
    assert found is not None
    assert (found.culprits, found.victims) == ("1", "0,2")


def test_victims_through_other_groups_are_counted() -> None:
    groups = {"tp": (0, 1), "tq": (2, 3), "dp": (0, 2), "dq": (1, 3)}
    calls = {0: [pending("tp")], 1: [], 2: [pending("dp")], 3: [pending("tq")]}
    found = told(four(1), calls, groups).verdict
    assert found is not None
    assert (found.culprits, found.victims) == ("1", "0,2-3")
    assert "2 of them through 2 other groups" in summary(found)
    assert "#1 of tp" in summary(found)


def test_same_line_everywhere_and_different_sizes() -> None:
    world = World()
    for _ in range(4):
        world.add(world.in_all_reduce())
    calls = {r: [pending("w", size=(5,) if r == 3 else (4,))] for r in range(4)}
    found = told(world, calls, {"w": range(4)}).verdict
    assert found is not None
    assert (found.kind, found.culprits, found.confidence) == ("collective-mismatch", "3", "likely")
    assert "[5]" in summary(found) and "[4]" in summary(found)


def test_calls_made_while_we_watched_are_moves() -> None:
    # Both looks find the ranks at the same lines, and yet each has just called something.
    calls = {r: [Call("w")] * 5 + ([pending("w")] if r != 2 else []) for r in range(4)}
    assert told(four(2, left=0.2), calls, {"w": range(4)}, ago=0.3).verdict is None
    assert told(four(2, left=3600), calls, {"w": range(4)}, ago=0.3).verdict is not None  # it sleeps for an hour


def test_a_rank_that_naps_between_two_calls_is_no_hang() -> None:
    # Rank 0 slept for 2 s more, made a call with the others 7 s ago, and sleeps again, all within one look.
    world = World(span=14.0)
    naps = [world.thread(own("step"), call=SnapshotCall("clock_nanosleep", left=left), idle=5.0) for left in (2.0, 2.1)]
    process = world.process(100, *((nap,) for nap in naps))
    world.ranks.append(Rank(rank=0, host="n1", process=process, local_rank=0))
    world.add(world.in_all_reduce(idle=5.0))
    calls = {0: [Call("w")] * 2, 1: [Call("w")] * 2 + [pending("w")]}
    snapshot = recorded(
        world, calls, {"w": range(2)}, ago=7.0 - 13.0
    )  # as of NOW, which is 13 s before the last sample
    found = explain(snapshot)
    assert found.verdict is None, found.verdict


@pytest.mark.parametrize("others", [1, 3])
def test_a_rank_that_has_just_come_is_in_no_other_call_than_those_that_wait_for_it(others: int) -> None:
    # Its recorder was read before it came, so that the number of its call is not known.
    world = World()
    world.add_moving(world.thread(own("step"), call=SnapshotCall("clock_nanosleep", left=0.2)), world.in_all_reduce())
    for _ in range(others):
        world.add(world.in_all_reduce())
    calls = {rank: [Call("w"), *([pending("w")] if rank else [])] for rank in range(1 + others)}
    snapshot = recorded(world, calls, {"w": range(1 + others)}, ago=9.0)
    ranks = [
        replace(rank, recorder=replace(rank.recorder, time=NOW - 0.5)) if rank.recorder and not rank.rank else rank
        for rank in snapshot.ranks
    ]
    found = explain(replace(snapshot, ranks=tuple(ranks)))
    assert found.verdict is None, found.verdict


def test_a_rank_whose_call_has_completed_meanwhile_moves() -> None:
    world = World()
    for _ in range(2):
        world.add(world.in_all_reduce())
    calls = {0: [pending("w")], 1: [Call("w")]}
    assert told(world, calls, {"w": range(2)}, ago=0.2).verdict is None


def test_a_lone_forward_of_an_fsdp_model_is_named_so() -> None:
    world = World()
    forward = (own("validate", 50), lib("pre_forward", FSDP), lib("unshard", FSDP), lib("all_gather", C10D))
    world.add(world.thread(*forward))
    for _ in range(3):
        world.add(world.in_barrier())
    calls = {0: [pending("w", "all_gather")], **{r: [pending("w", "barrier")] for r in (1, 2, 3)}}
    found = told(world, calls, {"w": range(4)}).verdict
    assert found is not None
    assert (found.kind, found.culprits) == ("collective-mismatch", "0")
    assert "alone runs an FSDP model, in validate" in summary(found)
    assert "all_gather of its parameters" in summary(found) and "barrier" in summary(found)


def test_roots_that_differ_are_read_from_the_arguments() -> None:
    world = World()
    for rank in range(3):
        hints = {"broadcast.src": "2" if rank == 2 else "0"}
        world.add(world.thread(own("share", 7), lib("broadcast"), hints=hints))
    calls = {r: [pending("w", "broadcast")] for r in range(3)}
    found = told(world, calls, {"w": range(3)}).verdict
    assert found is not None
    assert (found.kind, found.culprits) == ("collective-mismatch", "2")
    assert "rank 2 with root 2" in summary(found)
