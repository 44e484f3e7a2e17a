"""One odd sample of one rank does not change what is said of it.

A sample is not of one instant: the state, the system call and the stack of a thread are read one after another, and on
a busy machine one of them may not be read at all.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.verdict import explain
from breakranks.snapshot.introspection import Introspection, PolledFile
from breakranks.snapshot.model import Call, FileLock, Process, Rank, Thread
from breakranks.snapshot.unread_samples import newest_is_unread, without_unread_samples
from support.values import replace

from .jobs import LOADER, World, lib, own

PATH = "/tmp/weights.part"
NAP = Call("clock_nanosleep", left=0.03)
EXISTS = lib("exists", "<frozen genericpath>")
Moments = Callable[[World], list[Thread]]


def poll(world: World, line: int = 15, call: Call | None = NAP, **more: object) -> Thread:
    return world.thread(own("wait_until_done", line), call=call, idle=0.0, **more)  # type: ignore[arg-type]


def unread(world: World, call: Call | None = None, idle: float = 60.0) -> Thread:
    return world.thread(call=call, idle=idle)._replace(python=False)


def add_polling(world: World, *moments: Thread, sure: bool = True) -> None:
    """A rank that waits for a file, whose path introspection showed; ``sure``: its loop ends with the file."""
    lock = FileLock(path=PATH, kind="own", waiter=100, age=3600.0)
    inside = Introspection(time=1001.0, polled=(PolledFile(1, PATH, "own", sure),))
    process = world.process(100 + len(world.ranks), *((moment,) for moment in moments), locks=(lock,), inside=inside)
    world.ranks.append(Rank(rank=len(world.ranks), host="n1", process=process, local_rank=0))


def add(world: World, *moments: Thread) -> None:
    process = world.process(100 + len(world.ranks), *((moment,) for moment in moments))
    world.ranks.append(Rank(rank=len(world.ranks), host="n1", process=process, local_rank=0))


def in_exists(world: World, *native: str) -> Thread:
    return world.thread(own("wait_until_done", 14), EXISTS, call=None, state="R", native=native)


ODD: dict[str, Moments] = {
    "none": lambda world: [poll(world)] * 3,
    "between two sleeps": lambda world: [poll(world), poll(world), in_exists(world)],
    "no stack": lambda world: [poll(world), poll(world), unread(world, NAP)],
    "no stack, then between two sleeps": lambda world: [
        poll(world), unread(world, NAP), poll(world), poll(world, 14, None, state="R")
    ],
    "the end of the sleep was read too late": lambda world: [
        poll(world), poll(world), poll(world, call=Call("clock_nanosleep", left=1.4e14))
    ],
    "the end of the sleep was not read": lambda world: [
        poll(world), poll(world), poll(world, call=Call("clock_nanosleep", left=None))
    ],
    "blocked in stat of the file": lambda world: [
        poll(world), poll(world), poll(world, 14, Call("newfstatat", path=PATH))
    ],
    "C frames of the instant at which it took the GIL": lambda world: [
        poll(world), poll(world, native=("PyEval_RestoreThread", "take_gil")), poll(world), poll(world)
    ],
    "C frames of the sleep, and twice between two sleeps": lambda world: [
        poll(world), in_exists(world, "clock_nanosleep", "time_sleep"), in_exists(world)
    ],
}  # fmt: skip


@pytest.mark.parametrize("sure", [True, False])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_a_rank_that_polls_for_a_file_is_known_in_any_sample(odd: Moments, sure: bool) -> None:
    # GIVEN two ranks that poll for one file
    world = World(span=6.0)
    add_polling(world, *[poll(world)] * 3, sure=sure)
    add_polling(world, *odd(world), sure=sure)

    # THEN both are named
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.culprits) == ("stale-lock-file", "0-1")


@pytest.mark.parametrize(("sure", "found"), [(True, "0"), (False, "")])
def test_a_long_sleep_counts_only_in_a_loop_that_ends_with_the_file(sure: bool, found: str) -> None:
    """A loop that looks at a file once a minute and goes on without it is no wait."""
    world = World(span=6.0)
    sleeps = [poll(world, call=Call("clock_nanosleep", left=left)) for left in (15.0, 12.0, 55.0)]
    add_polling(world, *sleeps, sure=sure)
    verdict = explain(world.snapshot()).verdict
    assert (verdict.culprits if verdict is not None else "") == found


def test_a_rank_that_stays_in_stat_of_its_lock_file_is_blocked_there() -> None:
    world = World(span=6.0)
    stuck = poll(world, 14, Call("newfstatat", path=PATH))
    add_polling(world, poll(world), stuck, stuck, stuck)
    add(world, *[world.in_all_reduce()] * 4)
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None and (verdict.kind, verdict.culprits) == ("blocked-io", "0")


def test_a_long_sleep_beside_a_name_in_the_frames_is_no_wait_for_that_file() -> None:
    # GIVEN a path that is only in a variable of the thread: no loop around the sleep tests it
    world = World(span=6.0)
    sleeping = poll(world, call=Call("clock_nanosleep", left=600.0), hints={"wait_until_done.lock": PATH})
    lock = FileLock(path=PATH, kind="own", waiter=100, age=3600.0)
    process = world.process(100, (sleeping,), locks=(lock,))
    world.ranks.append(Rank(rank=0, host="n1", process=process, local_rank=0))
    verdict = explain(world.snapshot()).verdict
    assert verdict is None or verdict.kind != "stale-lock-file"


@pytest.mark.parametrize("missing", [None, 3, 2], ids=["none", "the newest", "one in the middle"])
def test_a_stack_that_could_not_be_read_once_moves_no_rank(missing: int | None) -> None:
    # GIVEN three ranks in a collective and one that sleeps; of one rank a stack could not be read
    world = World(span=6.0)
    inside = world.in_all_reduce(idle=600.0)
    add(world, *[inside] * 4)
    add(world, *[inside] * 4)
    add(world, *[unread(world) if index == missing else inside for index in range(4)])
    add(world, *[world.thread(own("load"), call=Call("clock_nanosleep", left=3600.0), idle=600.0)] * 4)

    # THEN
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.culprits, verdict.victims) == ("missing-from-collective", "3", "0-2")


def test_a_rank_that_moved_while_a_stack_could_not_be_read_has_moved() -> None:
    # GIVEN ranks that wait for one that reads from a socket; one of them was released and came back, unread
    world = World(span=6.0)
    inside = world.in_all_reduce(idle=0.2)
    add(world, inside, inside, unread(world, idle=0.2), inside, inside)
    (rank,) = world.ranks
    samples = list(rank.process.samples)
    samples[2] = samples[2]._replace(quiet_ran=(1,))
    world.ranks[0] = replace(rank, process=replace(rank.process, samples=tuple(samples)))
    add(world, *[inside] * 5)
    add(world, *[world.thread(own("fetch"), call=Call("recvfrom", 7), idle=0.2)] * 5)

    # THEN
    diagnosis = explain(world.snapshot())
    assert (diagnosis.verdict, diagnosis.settled) == (None, False)
    (kept, *_) = without_unread_samples(world.snapshot()).ranks
    assert [sample.quiet_ran for sample in kept.process.samples] == [None, (), (1,), ()]


def test_stacks_that_could_not_be_read_once_are_no_progress_of_the_job() -> None:
    # GIVEN ranks that wait for one that reads from a socket; once, the stacks of all that wait were not read
    world = World(span=7.0)
    inside = world.in_all_reduce(idle=2.0)
    for _ in range(2):
        add(world, inside, unread(world, idle=2.0), inside, inside)
    add(world, *[world.thread(own("fetch"), call=Call("recvfrom", 7), idle=2.0)] * 4)

    # THEN
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None and verdict.victims == "0-1"


def test_a_holder_of_the_gil_whose_stack_could_not_be_read_once() -> None:
    world = World(span=6.0)
    add(world, *[world.in_all_reduce()] * 3)
    holds = world.thread(own("solve"), call=Call("futex"), gil=True, native=("ffi_call", "solve"))
    add(world, holds, unread(world), holds)
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None and (verdict.kind, verdict.culprits) == ("gil-held", "1")


def test_samples_without_a_stack_that_are_kept() -> None:
    def samples(*texts: str, state: str = "S") -> tuple[int, bool]:
        world = World()
        moments = [poll(world) if text == "read" else unread(world) for text in texts]
        world.ranks.append(
            Rank(rank=0, host="n1", process=world.process(1, *((one,) for one in moments), state=state), local_rank=0)
        )
        snapshot = world.snapshot()
        (rank,) = without_unread_samples(snapshot).ranks
        return len(rank.process.samples), newest_is_unread(snapshot.ranks[0].process)

    assert samples("read", "read", "unread") == (2, True)
    assert samples("read", "unread", "read", "unread", "read") == (3, False)
    assert samples("read", "unread") == (2, True)  # two samples are the least
    assert samples("read", "read", "unread", "unread") == (4, False)  # it cannot be read any more
    assert samples("unread", "read", "read") == (3, False)  # Python had not begun
    assert samples("read", "read", "unread", state="T") == (3, False)  # it has been stopped
    assert samples("unread", "unread") == (2, False)


# --- states that a healthy process has for an instant ---


def in_states(process: Process, states: str) -> Process:
    """The process with a state in each of its samples. The last one is its state."""
    samples = tuple(sample._replace(state=state) for sample, state in zip(process.samples, states, strict=True))
    return replace(process, state=states[-1], samples=samples)


def waiting_for(process: Callable[[World], Process], span: float = 6.0) -> Diagnosis:
    """A rank, and one in a collective that waits for it."""
    world = World(span=span)
    world.ranks.append(Rank(rank=0, host="n1", process=process(world), local_rank=0))
    add(world, *[world.in_all_reduce()] * len(world.ranks[0].process.samples))
    return explain(world.snapshot())


@pytest.mark.parametrize(("states", "found"), [("TT", True), ("ST", False), ("STT", True)])
def test_a_rank_is_stopped_when_it_is_so_twice(states: str, found: bool) -> None:
    diagnosis = waiting_for(
        lambda world: in_states(world.process(100, *[(world.thread(own("load")),)] * len(states)), states)
    )
    if found:
        assert diagnosis.verdict is not None and diagnosis.verdict.kind == "rank-stopped"
    else:
        assert (diagnosis.verdict, diagnosis.settled) == (None, False)


def test_a_rank_of_which_a_stack_was_not_read_is_stopped_when_it_is_so_twice() -> None:
    def process(world: World) -> Process:
        load = world.thread(own("load"))
        return in_states(world.process(100, (load,), (unread(world),), (load,), (load,)), "SSST")

    diagnosis = waiting_for(process)
    assert (diagnosis.verdict, diagnosis.settled) == (None, False)


def test_each_of_several_stopped_ranks_is_seen_so_twice() -> None:
    # GIVEN a rank that is stopped, another that is stopped in the last sample only, and one that waits for both
    world = World(span=2.0)
    for rank, states in enumerate(("TTT", "SST")):
        process = in_states(world.process(100 + rank, *[(world.thread(own("load")),)] * 3), states)
        world.ranks.append(Rank(rank=rank, host="n1", process=process, local_rank=rank))
    add(world, *[world.in_all_reduce()] * 3)

    # THEN it takes another sample
    diagnosis = explain(world.snapshot())
    assert (diagnosis.verdict, diagnosis.settled) == (None, False)


@pytest.mark.parametrize("states", [("ZZ", "SZ"), ("SZ", "ZZ")])
def test_each_worker_of_several_ranks_is_seen_dead_twice(states: tuple[str, str]) -> None:
    world = World(span=0.6)
    for rank, of_worker in enumerate(states):
        ends = world.thread(own("train", 50), lib("_shutdown_workers", LOADER), call=Call("wait4"))
        worker = in_states(world.process(900 + rank, (), ()), of_worker)
        process = world.process(100 + rank, (ends,), (ends,), children=(worker,))
        world.ranks.append(Rank(rank=rank, host="n1", process=process, local_rank=rank))
    add(world, *[world.in_all_reduce()] * 2)
    diagnosis = explain(world.snapshot())
    assert (diagnosis.verdict, diagnosis.settled) == (None, False)


@pytest.mark.parametrize(("seconds", "found"), [(6.0, True), (1.0, False)])
def test_a_stopped_rank_of_which_no_sample_comes_any_more_stays_stopped(seconds: float, found: bool) -> None:
    """GIVEN a rank that was stopped in its last sample, some seconds before the newest sample of the others."""
    world = World(span=6.0)
    process = in_states(world.process(100, *[(world.thread(own("load")),)] * 2), "ST")
    first, last = process.samples
    samples = (first, last._replace(time=1006.0 - seconds))
    world.ranks.append(Rank(rank=0, host="n1", process=replace(process, samples=samples), local_rank=0))
    add(world, *[world.in_all_reduce()] * 6)
    diagnosis = explain(world.snapshot())
    assert (diagnosis.verdict is not None) == found
    assert diagnosis.settled == found


@pytest.mark.parametrize(
    ("states", "of_rank", "found"),
    [("ZZ", 2, True), ("SZ", 2, False), ("SZ", 4, False), ("ZZ", 4, True), ("Z", 2, False), ("Z", 4, False)],
)
def test_a_worker_has_died_when_its_parent_does_not_collect_it(states: str, of_rank: int, found: bool) -> None:
    """A worker may be younger than its rank, and have fewer samples (``states``) than that (``of_rank``)."""

    def process(world: World) -> Process:
        ends = world.thread(own("train", 50), lib("_shutdown_workers", LOADER), call=Call("wait4"))
        worker = world.process(900, (), ())
        worker = in_states(replace(worker, samples=worker.samples[-len(states) :]), states)
        return world.process(100, *[(ends,)] * of_rank, children=(worker,))

    diagnosis = waiting_for(process, span=0.6)
    if found:
        assert diagnosis.verdict is not None and diagnosis.verdict.kind == "helper-dead"
    else:
        assert (diagnosis.verdict, diagnosis.settled) == (None, False)


@pytest.mark.parametrize(
    ("states", "kind"), [("DDDDDDD", "blocked-io"), ("RRRRRRR", "straggler"), ("RRRRRRD", "straggler")]
)
def test_a_rank_that_computes_waits_for_a_page_now_and_then(states: str, kind: str) -> None:
    def process(world: World) -> Process:
        lines = [world.thread(own("augment", 10 + at % 2 * 2), call=None, state=state, idle=0.0, ran=at * 3 * 10**9)
                 for at, state in enumerate(states)]  # fmt: skip
        return in_states(world.process(100, *((line,) for line in lines), ran=True), states)

    diagnosis = waiting_for(process, span=20.0)
    assert diagnosis.verdict is not None and diagnosis.verdict.kind == kind


@pytest.mark.parametrize("wakes", [False, True])
def test_a_sleep_that_ends_just_now_is_no_hang(wakes: bool) -> None:
    # GIVEN a rank that saves for eight seconds, while another one waits for it
    def process(world: World) -> Process:
        moments = [
            world.thread(own("save"), native=("time_sleep",), call=Call("clock_nanosleep", left=left))
            for left in (6.2, 3.2, 0.2)
        ]
        if wakes:
            moments[2] = world.thread(own("save"), native=("time_sleep",), call=None, state="R")
        return world.process(100, *((moment,) for moment in moments))

    diagnosis = waiting_for(process)
    assert (diagnosis.verdict, diagnosis.settled) == (None, False)
