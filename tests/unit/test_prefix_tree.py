"""The fold loses no rank, whatever the stacks and the order of ranks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.rankset import RankSet
from breakranks.snapshot.model import Frame, Job, Process, Rank, Sample, Snapshot, StackTable, Thread
from breakranks.snapshot.prefix_tree import StackNode, boilerplate, classes, cut, fold, fold_threads

FRAMES = [Frame(f"f{i}", f"/home/me/m{i % 3}.py", i) for i in range(6)]
stacks_of_ranks = st.dictionaries(
    st.integers(0, 300), st.lists(st.sampled_from(FRAMES), max_size=6).map(tuple), max_size=40
)


def snapshot_of(stacks: dict[int, tuple[Frame, ...]], order: list[int] | None = None) -> Snapshot:
    table = StackTable()
    ranks = []
    for rank in order if order is not None else sorted(stacks):
        thread = Thread(tid=rank + 1, name="MainThread", stack=table.add(stacks[rank]))
        sample = Sample(time=1.0, state="S", threads=(thread,))
        ranks.append(
            Rank(rank=rank, host="n1", process=Process(pid=rank + 1, parent=1, command=("python",), samples=(sample,)))
        )
    return made(table, ranks)


def made(table: StackTable, ranks: list[Rank]) -> Snapshot:
    return Snapshot(
        version=1,
        made_by="test",
        time=1.0,
        job=Job(key="j", launcher="torchrun"),
        ranks=tuple(ranks),
        frames=tuple(table.frames),
        stacks=tuple(table.stacks),
    )


def shape(node: StackNode) -> object:
    return (node.frame, str(node.ranks), str(node.ends), [shape(child) for child in node.children])


@given(stacks_of_ranks)
def test_every_branch_is_its_children_and_its_ends(stacks: dict[int, tuple[Frame, ...]]) -> None:
    root = fold(snapshot_of(stacks))
    for node in [root, *(node for _, node in root.walk())]:
        union = node.ends
        for child in node.children:
            # A rank's main thread has one stack, so it went down one branch only.
            assert not union & child.ranks
            union |= child.ranks
        assert union == node.ranks
        assert node is root or node.ranks


@given(stacks_of_ranks)
def test_no_rank_is_lost_and_each_ends_on_its_own_stack(stacks: dict[int, tuple[Frame, ...]]) -> None:
    root = fold(snapshot_of(stacks))
    assert set(root.ranks) == set(stacks)
    ends: dict[int, tuple[Frame, ...]] = dict.fromkeys(root.ends, ())
    path: list[Frame] = []
    for depth, node in root.walk():
        path[depth:] = [node.frame]
        ends.update(dict.fromkeys(node.ends, tuple(path)))
    assert ends == stacks


@given(stacks_of_ranks, st.randoms(use_true_random=False))
def test_the_order_of_looking_does_not_show(stacks: dict[int, tuple[Frame, ...]], chance: random.Random) -> None:
    order = list(stacks)
    chance.shuffle(order)
    assert shape(fold(snapshot_of(stacks, order))) == shape(fold(snapshot_of(stacks)))


@given(stacks_of_ranks, st.frozensets(st.integers(0, 300)))
def test_chosen_ranks_only(stacks: dict[int, tuple[Frame, ...]], chosen: frozenset[int]) -> None:
    root = fold(snapshot_of(stacks), ranks=RankSet(chosen))
    kept = {rank: stack for rank, stack in stacks.items() if rank in chosen}
    assert shape(root) == shape(fold(snapshot_of(kept)))


@given(stacks_of_ranks)
def test_classes_part_the_ranks(stacks: dict[int, tuple[Frame, ...]]) -> None:
    snapshot = snapshot_of(stacks)
    found = classes(snapshot)
    assert sum(len(ranks) for _, ranks in found) == len(stacks)
    assert len(found) == len(set(stacks.values()))
    assert all(stacks[rank] == snapshot.stack(row) for row, ranks in found for rank in ranks)


def test_each_different_stack_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a thousand ranks on three stacks
    snapshot = snapshot_of({rank: (FRAMES[0], FRAMES[1 + rank % 3]) for rank in range(1000)})
    built: list[int] = []
    original = Snapshot.stack
    monkeypatch.setattr(Snapshot, "stack", lambda self, row: built.append(row) or original(self, row))
    # WHEN they are folded
    root = fold(snapshot)
    # THEN the work was three stacks' work
    assert len(built) == 3
    assert [len(child.ranks) for child in root.children[0].children] == [334, 333, 333]


def test_branches_are_in_order_of_their_lowest_rank() -> None:
    stacks = {0: (FRAMES[5],), 1: (FRAMES[0],), 2: (FRAMES[0],), 3: (FRAMES[3],)}
    assert [str(child.ranks) for child in fold(snapshot_of(stacks)).children] == ["0", "1-2", "3"]


def test_a_rank_without_a_stack_ends_at_the_root() -> None:
    table = StackTable()
    seen = Process(
        pid=1,
        parent=0,
        command=(),
        samples=(Sample(time=1.0, state="S", threads=(Thread(tid=1, name="m", stack=table.add((FRAMES[0],))),)),),
    )
    blind = Process(pid=2, parent=0, command=(), samples=(Sample(time=1.0, state="Z"),))
    never = Process(pid=3, parent=0, command=())
    root = fold(
        made(
            table,
            [
                Rank(rank=0, host="n", process=seen),
                Rank(rank=1, host="n", process=blind),
                Rank(rank=2, host="n", process=never),
            ],
        )
    )
    assert str(root.ends) == "1-2"
    assert str(root.ranks) == "0-2"


def test_a_very_deep_stack_is_no_recursion() -> None:
    deep = tuple(Frame("f", "a.py", i) for i in range(20_000))
    root = fold(snapshot_of({0: deep, 1: deep[:-1]}))
    assert sum(1 for _ in root.walk()) == 20_000


def test_samples_are_chosen_by_number() -> None:
    table = StackTable()
    samples = tuple(
        Sample(time=float(i), state="S", threads=(Thread(tid=1, name="m", stack=table.add((frame,))),))
        for i, frame in enumerate(FRAMES[:2])
    )
    snapshot = made(table, [Rank(rank=0, host="n", process=Process(pid=1, parent=0, command=(), samples=samples))])
    assert fold(snapshot).children[0].frame == FRAMES[1]
    assert fold(snapshot, sample=0).children[0].frame == FRAMES[0]
    assert str(fold(snapshot, sample=2).ends) == "0"


def test_threads_fold_by_name_and_native_frames_join() -> None:
    table = StackTable()
    wait = Frame("gloo::wait", "/x/libtorch_cpu.so", 0, True)
    ranks = []
    for rank in range(2):
        threads = (
            Thread(tid=10, name="MainThread", stack=table.add((FRAMES[0],)), native=table.add((FRAMES[0], wait))),
            Thread(tid=11, name="worker_0", stack=table.add((FRAMES[1],))),
            Thread(tid=12, name="worker_1", stack=table.add((FRAMES[1],))),
            Thread(tid=13, name="pin", stack=table.add((FRAMES[2 + rank],))),
            Thread(tid=14, name="gloo", python=False, native=table.add((wait,))),
        )
        ranks.append(
            Rank(
                rank=rank,
                host="n",
                process=Process(
                    pid=rank, parent=0, command=(), samples=(Sample(time=1.0, state="S", threads=threads),)
                ),
            )
        )
    snapshot = made(table, ranks)

    trees = fold_threads(snapshot)
    assert [(tree.name, tree.count) for tree in trees] == [("main thread", 2), ("pin", 2), ("worker_#", 4)]
    assert [str(child.ranks) for child in trees[1].root.children] == ["0", "1"]
    assert [str(child.ranks) for child in trees[2].root.children] == ["0-1"]
    assert [node.frame.function for _, node in fold(snapshot).walk()] == ["f0"]
    assert [node.frame.function for _, node in fold(snapshot, native=True).walk()] == ["f0", "gloo::wait"]
    assert [tree.name for tree in fold_threads(snapshot, native=True)] == [
        "main thread",
        "gloo",
        "pin",
        "worker_#",
    ]


SITE = "/venv/lib/python3.11/site-packages"
BOOT = (
    Frame("_run_module_as_main", "<frozen runpy>", 198),
    Frame("_run_code", "<frozen runpy>", 88),
)
STEP = (
    Frame("main", "/home/me/train.py", 10),
    Frame("_wrapped_call_impl", f"{SITE}/torch/nn/modules/module.py", 1),
    Frame("_call_impl", f"{SITE}/torch/nn/modules/module.py", 2),
    Frame("forward", "/home/me/model.py", 20),
    Frame("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 81),
    Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3000),
)


def test_cut_leaves_what_a_person_wrote_and_what_it_waits_in() -> None:
    assert [frame.function for frame in cut(BOOT + STEP)] == ["main", "forward", "all_reduce"]
    assert [frame.function for frame in cut((*STEP, Frame("poll", "libc.so", 0, True)))][-1] == "poll"


def test_cut_never_takes_the_innermost_frame() -> None:
    for end in range(1, len(BOOT + STEP) + 1):
        stack = (BOOT + STEP)[:end]
        assert cut(stack)[-1] == stack[-1]
    assert cut(()) == ()


def test_cut_knows_a_spawned_child_from_python_dash_c() -> None:
    module = Frame("<module>", "<string>", 1)
    spawn = Frame("spawn_main", "/usr/lib/python3.11/multiprocessing/spawn.py", 122)
    assert cut((module, spawn, STEP[0])) == (STEP[0],)
    assert cut((module, STEP[0])) == (module, STEP[0])


def test_cut_takes_native_glue_only_before_the_first_real_frame() -> None:
    def c(name: str) -> Frame:
        return Frame(name, "/x/lib.so", 0, True)

    stack = (c("_start"), c("main"), STEP[0], c("slot_tp_call"), c("autograd"), STEP[3], c("cfunction_call"))
    assert [f.function for f in cut((*stack, c("c10d::wait"), c("_PyObject_Call"), c("poll")))] == [
        "main",
        "autograd",
        "forward",
        "c10d::wait",
        "_PyObject_Call",
        "poll",
    ]


def test_a_persons_function_with_a_known_name_stays() -> None:
    assert not boilerplate(Frame("run", "/home/me/threading_tools.py", 1))
    assert not boilerplate(Frame("wrapper", "/home/me/train.py", 1))


@given(stacks_of_ranks)
def test_full_cuts_nothing(stacks: dict[int, tuple[Frame, ...]]) -> None:
    booted = {rank: BOOT + stack for rank, stack in stacks.items()}
    functions = [node.frame.function for _, node in fold(snapshot_of(booted), full=True).walk()]
    assert functions[:2] == (["_run_module_as_main", "_run_code"] if stacks else [])
