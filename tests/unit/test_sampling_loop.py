"""When a job has been sampled for long enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from breakranks.backend.sampling_loop import sample_until_conclusive
from breakranks.snapshot.introspection import Introspection, PolledFile
from breakranks.snapshot.model import Call, FileLock, Missing, Problem, Rank, Snapshot
from support.values import replace

from .jobs import LONG_SLEEP, World, own


class Recorded:
    """A job with one snapshot after another; the last one is repeated."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots
        self.sampled = 0
        self.asked: list[int] = []  # the samples in which the ranks were asked
        self.natively: list[int] = []  # the samples in which C frames were read

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        self.sampled += 1
        self.asked += [self.sampled] * recorders
        self.natively += [self.sampled] * native

    def snapshot(self, keep: int | None = None) -> Snapshot:
        return self._snapshots[min(self.sampled - 2, len(self._snapshots) - 1)]


def polling(span: float, *, odd: bool = False) -> Snapshot:
    """Two ranks that poll for the part of a third. ``odd``: one of them was sampled between two sleeps."""
    world = World(world_size=3, span=span)
    nap = Call("clock_nanosleep", left=0.2)
    for rank in range(2):
        call = None if odd and rank else nap
        world.add(world.thread(own("merge_parts"), call=call, idle=span, state="R" if call is None else "S"))
    world.missing.append(Missing(ranks="2", reason="exited"))
    return world.snapshot()


def test_one_odd_sample_does_not_end_the_inspection() -> None:
    # GIVEN a cause that must last for ten seconds, and a sample in between that does not show it
    sampler = Recorded([polling(2.0), polling(4.0, odd=True), polling(30.0)])

    # WHEN
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)

    # THEN
    assert diagnosis.verdict is not None and diagnosis.verdict.kind == "rank-exited", diagnosis
    assert sampler.sampled == 4


def test_a_job_in_which_nothing_moves_is_looked_at_twice() -> None:
    sampler = Recorded([polling(2.0, odd=True), polling(30.0)])
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)
    assert diagnosis.verdict is not None, diagnosis


def test_a_job_that_moves_takes_two_samples() -> None:
    world = World(span=1.0)
    for _ in range(2):
        world.add_moving(world.thread(own("step", 10), call=None, state="R"), world.thread(own("load", 20), call=None))
    sampler = Recorded([world.snapshot()])
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)
    assert (diagnosis.verdict, sampler.sampled) == (None, 2)


@pytest.mark.parametrize(("late", "samples"), [(True, 3), (False, 2)])
def test_a_rank_that_did_not_answer_in_time_is_asked_once_more(late: bool, samples: int) -> None:
    # GIVEN ranks that move, and nothing to find without the answer of one of them
    world = World(span=1.0)
    for _ in range(2):
        world.add_moving(world.thread(own("step", 10), call=None, state="R"), world.thread(own("load", 20), call=None))
    problem = Problem("lock owners and steps of process 100 cannot be read", late=late)
    sampler = Recorded([replace(world.snapshot(), problems=(problem,))])

    # WHEN
    sample_until_conclusive(sampler, interval=0.01)

    # THEN
    assert (sampler.sampled, sampler.asked[-1]) == (samples, samples)


def test_nothing_is_found_twice_in_a_row() -> None:
    world = World(span=1.0)
    world.add(world.thread(own("serve"), call=LONG_SLEEP, idle=0.5))
    sampler = Recorded([world.snapshot()])
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)
    assert (diagnosis.verdict, sampler.sampled) == (None, 3)


def waiting_for_a_file(age: float, *, known: int) -> Snapshot:
    """Three ranks that wait for one file. For the first ``known`` of them introspection shows that."""
    world = World(span=age)
    for rank in range(3):
        path = "/tmp/part" if rank < known else ""
        world.add(
            world.thread(own("merge_parts"), call=Call("clock_nanosleep", left=0.05), idle=0.0),
            inside=Introspection(polled=(PolledFile(1, path, "own"),) if path else ()),
            locks=(FileLock(path=path, kind="own", waiter=1, age=age + 60),) if path else (),
        )
    return world.snapshot()


def test_a_rank_that_only_the_last_sample_leaves_out_is_named() -> None:
    # GIVEN a cause that must last for five seconds, and a sample that does not show it for one of the ranks
    sampler = Recorded(
        [waiting_for_a_file(2.0, known=3), waiting_for_a_file(6.0, known=2), waiting_for_a_file(7.0, known=3)]
    )

    # WHEN
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)

    # THEN
    assert diagnosis.verdict is not None, diagnosis
    assert (diagnosis.verdict.kind, diagnosis.verdict.culprits) == ("stale-lock-file", "0-2")
    assert sampler.sampled == 4


def test_a_rank_that_the_last_samples_leave_out_is_asked_again() -> None:
    # GIVEN a rank whose answer was lost two samples before the verdict
    ages = ((2.0, 3), (3.0, 2), (4.0, 2), (6.0, 2), (7.0, 3))
    sampler = Recorded([waiting_for_a_file(age, known=known) for age, known in ages])

    # WHEN
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)

    # THEN the sample that confirms asks the ranks
    assert diagnosis.verdict is not None and diagnosis.verdict.culprits == "0-2", diagnosis
    assert sampler.asked[-1] == sampler.sampled == 6


def test_a_rank_that_the_samples_keep_leaving_out_is_not_named() -> None:
    sampler = Recorded([waiting_for_a_file(2.0, known=3), waiting_for_a_file(6.0, known=2)])
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)
    assert diagnosis.verdict is not None and diagnosis.verdict.culprits == "0-1", diagnosis
    assert sampler.sampled == 4


def test_stacks_that_are_not_read_while_a_cause_is_pending_use_up_no_doubt() -> None:
    # GIVEN a cause that must last, samples without the stack of a rank until then, and one that leaves a rank out
    def pending(*, unread: bool) -> Snapshot:
        snapshot = waiting_for_a_file(2.0, known=3)
        rank, *others = snapshot.ranks
        last = rank.process.samples[-1]
        lost = last._replace(time=last.time + 0.1, threads=(last.threads[0]._replace(python=False, stack=0),))
        process = replace(rank.process, samples=(*rank.process.samples, lost))
        return replace(snapshot, ranks=(replace(rank, process=process), *others)) if unread else snapshot

    begin = [*[pending(unread=True)] * 3, pending(unread=False)]
    sampler = Recorded([*begin, waiting_for_a_file(6.0, known=2), waiting_for_a_file(7.0, known=3)])

    # WHEN
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)

    # THEN the rank is named
    assert diagnosis.verdict is not None and diagnosis.verdict.culprits == "0-2", diagnosis


def test_a_stack_that_could_not_be_read_just_now_takes_one_more_sample() -> None:
    # GIVEN a job that has been blocked for long, and a rank whose stack could not be read in the second sample
    def blocked(*moments: bool) -> Snapshot:
        world = World(span=1.0)
        inside = world.in_all_reduce(idle=600.0)
        for _ in range(2):
            world.add(inside)
        lost = world.thread(call=None, idle=600.0)._replace(python=False)
        process = world.process(102, *((inside if read else lost,) for read in moments))
        world.ranks.append(Rank(rank=2, host="n1", process=process, local_rank=2))
        world.add(world.thread(own("load"), call=LONG_SLEEP, idle=600.0))
        return world.snapshot()

    sampler = Recorded([blocked(True, False), blocked(True, False, True)])

    # WHEN
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)

    # THEN
    assert diagnosis.verdict is not None
    assert (diagnosis.verdict.culprits, diagnosis.verdict.victims) == ("3", "0-2")
    assert sampler.sampled == 3


def test_c_frames_that_were_not_read_in_time_are_read_once_more() -> None:
    # GIVEN a job that has been blocked for long, and a rank whose C frames were late
    world = World(span=1.0)
    for _ in range(2):
        world.add(world.in_all_reduce(idle=600.0))
    world.add(world.thread(own("load"), call=LONG_SLEEP, idle=600.0), problems=(Problem("late", late=True),))
    sampler = Recorded([world.snapshot()])

    # WHEN
    _, diagnosis = sample_until_conclusive(sampler, interval=0.01)

    # THEN
    assert diagnosis.verdict is not None and diagnosis.verdict.culprits == "2"
    assert (sampler.sampled, sampler.natively) == (3, [2, 3])
