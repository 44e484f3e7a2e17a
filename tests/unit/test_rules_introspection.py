"""What introspection adds to a verdict, each from a literal situation."""

from __future__ import annotations

import msgspec
import pytest

from breakranks.explain.diagnosis import Finding
from breakranks.explain.verdict import explain
from breakranks.explain.wait_chains import common_report, reporting_processes
from breakranks.observe.evidence import as_own, still_so, with_paths
from breakranks.observe.pyspy_parse import PythonStacks, PythonThread
from breakranks.rankset import RankSet
from breakranks.show import json_output as show_json
from breakranks.show.stack_tree import stacks_lines
from breakranks.show.terminal_text import TerminalStyle
from breakranks.show.wording.finding_wording import evidence_lines, next_lines, summary
from breakranks.show.wording.introspection_wording import report_text
from breakranks.snapshot.introspection import (
    BY_ACQUIRE,
    BY_LOCK,
    BY_WITH,
    Introspection,
    Item,
    Loader,
    Loop,
    PolledFile,
    ThreadWait,
)
from breakranks.snapshot.model import Call, FileLock, Frame, OpenFile, Process, Rank, Snapshot, Thread
from support.values import replace

from .jobs import LOADER, LONG_SLEEP, OWN, THREADING, World, lib, own

FUTEX = Call("futex")
RECV = Call("recvfrom", 5)
WORKER = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"


def verdict(world: World) -> Finding:
    found = explain(world.snapshot()).verdict
    assert found is not None
    return found


def at_lock(world: World, function: str, tid: int, name: str, **more: object) -> Thread:
    return world.thread(own(function), native=("lock_PyThread_acquire_lock",), tid=tid, name=name, **more)  # type: ignore[arg-type]


def held(tid: int, owner: int, name: str = "self.lock", proof: str = BY_WITH, kind: str = "Lock") -> ThreadWait:
    return ThreadWait(tid=tid, kind=kind, name=name, owner=owner, proof=proof, function="fill", file=OWN, line=7)


def said(*waits: ThreadWait, **more: object) -> Introspection:
    return Introspection(time=1001.0, waits=waits, **more)  # type: ignore[arg-type]


def with_waits(*waits: ThreadWait, other: str = "lock", moves: bool = False, victims: bool = True) -> World:
    """Rank 0 at a lock, its thread `loader` at a lock or elsewhere, rank 1 in a collective."""
    world = World(span=6.0)
    main = at_lock(world, "lookup", 100, "MainThread")
    places = {
        "lock": at_lock(world, "fill", 7, "loader"),
        "socket": world.thread(own("fill"), tid=7, name="loader", call=RECV),
        "sleep": world.thread(own("fill"), tid=7, name="loader", call=LONG_SLEEP),
        "collective": world.thread(own("fill"), lib("all_reduce"), tid=7, name="loader"),
    }
    threads = (main, places[other])
    later = (main, world.thread(own("elsewhere"), tid=7, name="loader", call=RECV)) if moves else threads
    process = world.process(100, threads, later, inside=said(*waits))
    world.ranks.append(Rank(rank=0, host="n1", process=process))
    if victims:
        world.add(world.in_all_reduce(idle=2.0 if moves else 60.0), rank=1)
    return world


def test_locks_in_a_ring_are_a_certain_deadlock() -> None:
    world = with_waits(held(100, 7, "self.b"), held(7, 100, "self.a"))
    found = verdict(world)
    assert (found.kind, found.culprits, found.victims, found.confidence) == ("thread-deadlock", "0", "1", "certain")
    assert "MainThread waits for self.b (Lock) in lookup" in summary(found)
    assert "held by thread loader, which waits for self.a (Lock), held by MainThread" in summary(found)
    assert "loader took it in fill, train.py:7" in evidence_lines(found)[0]
    assert "breakranks attach --rank 0" in next_lines(found)


def test_who_only_called_acquire_makes_it_likely() -> None:
    world = with_waits(held(100, 7, "self.b"), held(7, 100, "self.a", BY_ACQUIRE))
    assert verdict(world).confidence == "likely"


def test_a_lock_taken_twice_by_one_thread() -> None:
    found = verdict(with_waits(held(100, 100)))
    assert (found.kind, found.confidence) == ("thread-deadlock", "certain")
    assert "waits for self.lock (Lock) in lookup, train.py:10, which it holds itself, taken in fill" in summary(found)


def test_an_owner_that_is_elsewhere_holds_the_lock() -> None:
    found = verdict(with_waits(held(100, 7), other="socket"))
    assert (found.kind, found.culprits, found.confidence) == ("lock-held", "0", "certain")
    assert "held by thread loader, which is waiting for a socket" in summary(found)
    assert found.where is not None and found.where.function == "lookup"


def test_an_owner_that_moves_is_given_time() -> None:
    diagnosis = explain(with_waits(held(100, 7), other="socket", moves=True).snapshot())
    assert diagnosis.verdict is None
    assert not diagnosis.settled and diagnosis.wait > 15


def test_an_owner_that_ran_once_while_it_was_blocked_does_not_move() -> None:
    """It ran for a moment longer than an inspection takes: the machine stood still, or it had a page fault."""
    world = World(span=9.0)
    main = at_lock(world, "lookup", 100, "MainThread")
    threads = (main, world.thread(own("fill"), tid=7, name="loader", call=RECV))
    process = world.process(100, *[threads] * 6, inside=said(held(100, 7)))
    for ran, confidence in ((1, "certain"), (2, None)):
        quiet = [(7,) if 0 < index <= ran else () for index in range(6)]
        samples = tuple(replace(sample, quiet_ran=tids) for sample, tids in zip(process.samples, quiet, strict=True))
        world.ranks = [Rank(rank=0, host="n1", process=replace(process, samples=samples))]
        found = explain(world.snapshot()).verdict
        assert (found.confidence if found is not None else None) == confidence


def test_an_owner_that_computes_is_given_time_from_the_first_two_samples_on() -> None:
    """As in a long call of C, at one line."""
    world = World(span=0.5)
    main = at_lock(world, "lookup", 100, "MainThread")
    owner = [world.thread(own("fill"), tid=7, name="loader", call=None, state="R", ran=ran) for ran in (0, 480_000_000)]
    process = world.process(100, *((main, moment) for moment in owner), inside=said(held(100, 7)))
    first, last = process.samples
    process = replace(process, samples=(first, replace(last, quiet_ran=(7,))))
    world.ranks.append(Rank(rank=0, host="n1", process=process))
    assert explain(world.snapshot()).verdict is None


def test_an_owner_that_moves_holds_up_nobody_who_is_alone() -> None:
    diagnosis = explain(with_waits(held(100, 7), other="socket", moves=True, victims=False).snapshot())
    assert diagnosis.verdict is None


def test_an_owner_in_a_collective_makes_the_rank_wait_for_ranks() -> None:
    world = with_waits(held(100, 7), other="collective")
    world.add(world.thread(own("publish"), call=LONG_SLEEP), rank=2)
    found = verdict(world)
    assert (found.kind, found.culprits, found.victims) == ("missing-from-collective", "2", "0-1")


def test_without_what_the_inside_said_the_owner_is_not_known() -> None:
    world = with_waits(other="lock")
    found = verdict(world)
    assert (found.kind, found.confidence) == ("thread-deadlock", "likely")
    assert "self.lock" not in summary(found)
    assert "the lock cannot be identified from outside the process" in evidence_lines(found)


def test_a_queue_whose_producer_has_ended() -> None:
    world = World(span=6.0)
    wait = ThreadWait(tid=100, kind="Queue", name="self.items", state="empty", ended=("reader",))
    main = world.thread(own("next_batch"), lib("get", "/usr/lib/python3.11/queue.py"), lib("wait", THREADING), tid=100)
    world.add(main, inside=said(wait))
    world.add(world.in_all_reduce())
    found = verdict(world)
    assert (found.kind, found.culprits) == ("thread-deadlock", "0")
    assert "waits for self.items (Queue), which is empty, in next_batch" in summary(found)
    assert "thread reader, which it started, has ended" in summary(found)
    assert "no other thread of the process has self.items among its variables" in evidence_lines(found)


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (
            ThreadWait(tid=100, kind="Barrier", name="both", state="1 of 2 has arrived"),
            "waits for both (Barrier), at which 1 of 2 has arrived, in",
        ),
        (
            ThreadWait(tid=100, kind="Event", name="self.ready", state="not set"),
            "waits for self.ready (Event), which is not set, in",
        ),
        (ThreadWait(tid=100, kind="Condition"), "waits for a Condition in"),
    ],
)
def test_other_waits_whose_end_nobody_knows(wait: ThreadWait, words: str) -> None:
    world = World(span=6.0)
    world.add(world.thread(own("next_batch"), lib("wait", THREADING), tid=100), inside=said(wait))
    world.add(world.in_all_reduce())
    assert words in summary(verdict(world))


def loader_world(*, awaited: int, item: Item | None) -> World:
    world = World(span=6.0)
    busy = world.thread(own("decode", 40), tid=900, call=LONG_SLEEP)
    idle = world.thread(lib("_worker_loop", WORKER), tid=901, call=Call("poll"))
    children = (
        world.process(901, (idle,)),
        world.process(900, (busy,), inside=Introspection(item=item) if item is not None else None),
    )
    main = world.thread(own("train"), lib("_next_data", LOADER), lib("_get_data", LOADER), tid=100, call=Call("poll"))
    world.add(main, children=children, inside=said(loader=Loader(100, 3, 1, awaited)))
    world.add(world.in_all_reduce())
    return world


def test_the_worker_that_owes_the_batch_and_its_sample() -> None:
    found = verdict(loader_world(awaited=900, item=Item(1, 3, (12, 13, 14, 15), 13)))
    assert (found.kind, found.culprits) == ("data-loading", "0")
    assert "helper process 900 (worker 1), which is sleeping in decode, train.py:40, at sample 13" in summary(found)
    assert "batch 3 is due from worker 1, process 900" in evidence_lines(found)
    assert "it reads sample 13 of batch 3 (dataset indices 12, 13, 14, 15)" in evidence_lines(found)


def test_a_worker_that_is_gone() -> None:
    found = verdict(loader_world(awaited=77, item=None))
    assert (found.kind, found.confidence) == ("helper-dead", "certain")
    assert "worker 1 (process 77), which is gone" in summary(found)


def loops(pid: int, epoch: int, step: int, name: str = "step") -> Introspection:
    return said(loops=(Loop(tid=pid, function="train", file=OWN, names=("epoch", name), values=(epoch, step)),))


def test_how_far_each_has_come_is_evidence() -> None:
    world = World(span=6.0)
    for rank in range(3):
        thread = world.in_all_reduce() if rank else world.thread(own("publish"), call=LONG_SLEEP)
        world.add(thread, inside=loops(100 + rank, 1, 18 if rank else 17))
    assert "rank 0 is at step=17, the others at step=18" in evidence_lines(verdict(world))


def test_all_at_the_same_step_and_ranks_that_said_nothing() -> None:
    world = World(span=6.0)
    for rank in range(3):
        thread = world.in_all_reduce() if rank else world.thread(own("publish"), call=LONG_SLEEP)
        world.add(thread, inside=loops(100 + rank, 1, 18))
    assert "all are at epoch=1, step=18" in evidence_lines(verdict(world))
    world.ranks[1] = replace(world.ranks[1], process=replace(world.ranks[1].process, inside=None))
    assert "rank 0 is at epoch=1, step=18" in evidence_lines(verdict(world))


def test_where_all_are_to_blame_their_steps_are_told_apart() -> None:
    world = World(span=12.0)
    for rank, peer in enumerate((1, 2, 0)):
        thread = world.thread(own("shift"), lib("recv"), tid=1, hints={"recv.src": str(peer)})
        world.add(thread, inside=loops(100 + rank, 1, 4 if rank else 3))
    found = verdict(world)
    assert (found.kind, found.culprits) == ("p2p-deadlock", "0-2")
    assert "step is 3 on rank 0 and 4 on ranks 1-2" in evidence_lines(found)


def test_a_join_through_a_thread_that_waits_for_work() -> None:
    """It is not known what ends the wait of a joined thread, so a thread in a collective counts."""
    world = World(span=6.0)
    main = world.thread(own("finish"), lib("join", THREADING), tid=100)
    idle = world.thread(own("drain"), lib("get", "/usr/lib/python3.11/queue.py"), tid=7, name="drain")
    reducer = world.thread(own("reduce"), lib("all_reduce"), tid=8, name="reducer")
    waits = (
        ThreadWait(tid=100, kind="Thread", name="drain", owner=7, proof=BY_LOCK),
        ThreadWait(tid=7, kind="Queue", name="items", state="empty"),
    )
    world.add(main, idle, reducer, inside=said(*waits))
    world.add(world.thread(own("publish"), call=LONG_SLEEP))
    found = verdict(world)
    assert (found.kind, found.culprits, found.victims) == ("missing-from-collective", "1", "0")


def test_the_least_progressed_where_all_stand_at_one_line() -> None:
    """The outer loop counts first: step 90 of epoch 1 is behind step 5 of epoch 2."""
    world = World(span=12.0)
    for rank in range(3):
        behind = rank == 1
        thread = world.thread(own("sync"), lib("monitored_barrier"), tid=1)
        world.add(thread, inside=loops(100 + rank, 1 if behind else 2, 90 if behind else 5))
    found = verdict(world)
    assert (found.kind, found.culprits, found.victims) == ("collective-mismatch", "1", "0,2")
    assert "epoch is 1 on rank 1 and 2 on ranks 0,2" in summary(found)
    assert "rank 1 is at epoch=1, the others at epoch=2" in evidence_lines(found)


def stacks_of(snapshot: Snapshot, **more: bool) -> str:
    lines = stacks_lines(snapshot, TerminalStyle(width=0, color=False, now=0.0), **more)
    return "\n".join("".join(p if isinstance(p, str) else p[0] for p in line) for line in lines)


def test_a_note_says_what_all_of_a_class_say() -> None:
    world = World()
    for rank in range(3):
        world.add(world.in_all_reduce(), inside=loops(100 + rank, 4, 117 + (rank > 1)))
    snapshot = world.snapshot()
    assert report_text(common_report(reporting_processes(snapshot), RankSet([0, 1]))) == "epoch 4, step 117"
    assert report_text(common_report(reporting_processes(snapshot), RankSet([0, 1, 2]))) == "epoch 4, step 117-118"
    assert "[0-2] (3)  epoch 4, step 117-118" in stacks_of(snapshot)
    assert "[0-2] (3)  epoch 4, step 117-118" in stacks_of(snapshot, flat=True)
    made = show_json.stacks_json(snapshot, threads=True)
    (only,) = made["classes"]  # type: ignore[misc]
    assert only["note"] == "epoch 4, step 117-118"  # type: ignore[index]


def test_a_note_names_the_owner_of_a_lock_and_of_each_thread() -> None:
    snapshot = with_waits(held(100, 7), held(7, 100, "self.a", BY_LOCK, "RLock")).snapshot()
    assert "[0] (1)  waits for self.lock (Lock), held by loader" in stacks_of(snapshot)
    text = stacks_of(snapshot, threads=True)
    assert "[0] (1)  waits for self.a (RLock), held by MainThread" in text
    threads = show_json.stacks_json(snapshot, threads=True)["threads"]
    assert threads[0]["waits_for"] == {  # type: ignore[index]
        "kind": "Lock", "name": "self.lock", "state": "", "owner": {"tid": 7, "name": "loader", "known_by": "with"},
    }  # fmt: skip
    assert "waits_for" not in threads[2]  # type: ignore[index]


def test_ranks_that_said_nothing_have_no_note() -> None:
    world = World()
    world.add(world.in_all_reduce())
    assert "[0] (1)\n" in stacks_of(world.snapshot())
    assert show_json.stacks_json(world.snapshot())["classes"][0]["note"] == ""  # type: ignore[index]


# --- what still holds when the threads are sampled again ---


def seen(*threads: tuple[int, str, int]) -> PythonStacks:
    return PythonStacks(
        tuple(
            PythonThread(tid=tid, name="", gil=False, frames=(Frame(name, OWN, line),), hints={})
            for tid, name, line in threads
        )
    )


@pytest.mark.parametrize(
    ("now", "waits"),
    [
        (seen((1, "lookup", 3), (2, "fill", 9)), 1),
        (seen((1, "lookup", 3), (2, "fill", 12)), 1),  # the owner works inside the with block
        (seen((1, "lookup", 4), (2, "fill", 9)), 0),
        (seen((1, "lookup", 3), (2, "rest", 20)), 0),
        (seen((1, "lookup", 3)), 0),
    ],
)
def test_a_wait_is_forgotten_when_its_threads_go_on(now: PythonStacks, waits: int) -> None:
    then = seen((1, "lookup", 3), (2, "fill", 9))
    inside = said(
        held(1, 2),
        loops=(Loop(tid=1, function="lookup", file=OWN, names=("i",), values=(1,)),),
        polled=(PolledFile(1, "/x", "own"),),
    )
    assert len(still_so(inside, then, now).waits) == waits
    assert still_so(inside, then, then) == inside


def test_paths_that_were_named_inside_are_looked_for_like_others() -> None:
    inside = said(polled=(PolledFile(1, "/x/weights.part", "own"), PolledFile(1, "/x/lock", "file")))
    (thread,) = with_paths((Thread(tid=1, name="MainThread"),), inside)
    assert sorted(thread.hints.values()) == ["/x/lock", "/x/weights.part"]
    locks = [FileLock(path="/x/weights.part", kind="file", waiter=1), FileLock(path="/x/lock", kind="file", waiter=1)]
    assert [lock.kind for lock in as_own(locks, inside, ())] == ["own", "file"]
    assert [lock.path for lock in as_own(locks, inside, (OpenFile(3, "/x/weights.part", "file"),))] == ["/x/lock"]


def test_an_older_snapshot_has_nothing_of_the_inside() -> None:
    plain = msgspec.to_builtins(Process(pid=1, parent=0, command=("python",)))
    del plain["inside"]
    assert msgspec.convert(plain, Process).inside is None
