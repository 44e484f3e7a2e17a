"""When a watch takes a job for one that hangs: the decisions, without a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.errors import BreakranksError, NoJobError
from breakranks.explain.causes.collective_causes import RanksMove
from breakranks.explain.diagnosis import CERTAIN, LIKELY, Diagnosis, Finding
from breakranks.explain.finding_parts import Subject
from breakranks.explain.verdict import explain
from breakranks.jobs.found_jobs import FoundRank
from breakranks.rankset import RankSet
from breakranks.run.hang_clock import ROUNDS_WITHOUT_CAUSE, HangClock, Look, look_seconds
from breakranks.run.hang_watch import (
    HangFound,
    HangWatch,
    JobFound,
    JobNotSeen,
    LookTaken,
    ProgressResumed,
    WatchEnded,
    WatchEvent,
)
from breakranks.run.progress_marks import Progress, ProgressMonitor, marks_of, may_spin
from breakranks.run.watched_job import WatchedJob
from breakranks.snapshot.introspection import Introspection, Loop
from breakranks.snapshot.model import Sample, Snapshot
from breakranks.snapshot.recorder_tables import Group, Operation, Recorder, Track, pack_rows
from support.values import replace

from .jobs import FUTEX, LONG_SLEEP, World, lib, own

SECONDS = 60.0
STEP = look_seconds(SECONDS)


def finding(kind: str = "missing-from-collective", culprits: str = "1", confidence: str = LIKELY) -> Finding:
    return Finding(
        kind=kind,
        culprits=culprits,
        victims="0",
        confidence=confidence,
        cause=RanksMove(moving=1, seen=2),
        subject=Subject(ranks=culprits),
    )


def diagnosis(verdict: Finding | None, *, settled: bool = True, wait: float = 0.0) -> Diagnosis:
    pending = finding() if not settled else None
    return Diagnosis(verdict=verdict, findings=(), classes=(), settled=settled, wait=wait, pending=pending)


def look(at: float, *moved: str, verdict: Finding | None = None, still: float = 0.0, ranks: str = "1") -> Look:
    return Look(at, Progress(dict.fromkeys(moved, RankSet.parse(ranks))), diagnosis(verdict), still)


def first_due(clock: HangClock, looks: Iterator[Look]) -> float | None:
    return next((one.time for one in looks if clock.observe(one)), None)


def every_step(verdict: Finding | None, *moved: str, until: float = 300.0) -> Iterator[Look]:
    for number in range(int(until / STEP)):
        yield look(number * STEP, *(moved if number else ()), verdict=verdict)


def test_a_job_without_progress_hangs_after_the_time_given() -> None:
    clock = HangClock(SECONDS)
    due = first_due(clock, every_step(finding()))
    assert due == SECONDS
    assert clock.decide(look(due, verdict=finding()), spins=False) == "hang"


@pytest.mark.parametrize("what", ["calls", "counter", "bytes", "functions", "woken", "processes", "ended"])
def test_progress_sets_the_clock_back(what: str) -> None:
    assert first_due(HangClock(SECONDS), every_step(finding(), what)) is None


def test_the_clock_begins_when_the_stall_began() -> None:
    # GIVEN a job in which nothing has moved for an hour before the first look
    clock = HangClock(SECONDS)
    assert not clock.observe(look(0, verdict=finding(), still=3600))

    # THEN one more look without progress is not enough, two are
    assert not clock.observe(look(STEP, verdict=finding()))
    assert clock.observe(look(2 * STEP, verdict=finding()))
    assert clock.standing(2 * STEP) == 3600 + 2 * STEP


def test_after_progress_the_clock_begins_after_the_look_before() -> None:
    clock = HangClock(SECONDS)
    clock.observe(look(0))
    clock.observe(look(10, "bytes", still=500))
    assert clock.standing(10) == 10


def test_a_prompt_is_no_hang() -> None:
    assert first_due(HangClock(SECONDS), every_step(finding("debugger-prompt", confidence=CERTAIN))) is None


@pytest.mark.parametrize(
    ("kind", "moved", "spins", "decision"),
    [
        ("straggler", "cpu", False, ""),
        ("straggler", "cpu", True, "hang"),
        ("busy-loop", "cpu", False, ""),
        ("busy-loop", "cpu", True, "hang"),
        ("compile-wait", "cpu", False, ""),
        ("compile-wait", "little cpu", False, "hang"),
        ("stale-lock-file", "counter", False, "hang"),
        ("blocked-io", "little cpu", False, "hang"),
    ],
)
def test_what_only_uses_the_cpu(kind: str, moved: str, spins: bool, decision: str) -> None:
    """CPU time does not set the clock back; the explanation decides what it was used for."""
    clock = HangClock(SECONDS)
    due = first_due(clock, every_step(finding(kind), moved))
    assert due == SECONDS
    assert clock.decide(look(due, moved, verdict=finding(kind)), spins=spins) == decision


def test_another_culprit_is_progress_of_the_first() -> None:
    clock = HangClock(SECONDS)
    culprits = ("1", "2", "1-3", "0")
    looks = (look(n * STEP, verdict=finding(culprits=culprits[n % 4])) for n in range(40))
    assert first_due(clock, looks) is None


def test_without_a_cause_it_says_so_after_several_rounds() -> None:
    clock = HangClock(SECONDS)
    decisions = [
        (one.time, decision)
        for one in every_step(None, until=400)
        if clock.observe(one) and (decision := clock.decide(one, spins=False) or "nothing")
    ]
    assert [decision for _, decision in decisions[:ROUNDS_WITHOUT_CAUSE]] == ["nothing", "nothing", "unknown"]
    assert decisions[ROUNDS_WITHOUT_CAUSE - 1][0] == SECONDS * ROUNDS_WITHOUT_CAUSE
    assert len(decisions) == ROUNDS_WITHOUT_CAUSE


@pytest.mark.parametrize("moved", ["cpu", "little cpu"])
def test_without_a_cause_nothing_at_all_may_have_moved(moved: str) -> None:
    clock = HangClock(SECONDS)
    for one in every_step(None, moved, until=1000):
        assert not clock.observe(one) or clock.decide(one, spins=False) == ""


def test_a_cause_that_must_last_longer_is_asked_for_again_then() -> None:
    clock = HangClock(SECONDS)
    due = first_due(clock, every_step(None)) or 0
    unsettled = Look(due, Progress(), diagnosis(None, settled=False, wait=STEP))
    assert clock.decide(unsettled, spins=False) == ""
    assert clock.observe(look(due + STEP, verdict=finding()))
    assert clock.decide(look(due + STEP, verdict=finding()), spins=False) == "hang"
    assert clock.standing(due + STEP) == SECONDS + STEP


def test_progress_while_it_is_explained_is_no_hang() -> None:
    clock = HangClock(SECONDS)
    due = first_due(clock, every_step(finding())) or 0
    assert clock.decide(look(due + 5, "calls", verdict=finding()), spins=False) == ""
    assert clock.standing(due + 5) == 0


def hung(verdict: Finding) -> HangClock:
    clock = HangClock(SECONDS)
    due = first_due(clock, every_step(verdict)) or 0
    assert clock.decide(look(due, verdict=verdict), spins=False) == "hang"
    return clock


def test_the_same_hang_is_reported_once_and_another_verdict_again() -> None:
    clock = hung(finding())
    at = SECONDS
    assert first_due(clock, (look(at + n * STEP, verdict=finding()) for n in range(1, 50))) is None

    # WHEN the looks show another verdict, twice
    at += 50 * STEP
    other = finding("rank-exited", culprits="1")
    assert not clock.observe(look(at, verdict=other))
    assert clock.observe(look(at + STEP, verdict=other))
    assert clock.decide(look(at + STEP, verdict=other), spins=False) == "hang"
    assert first_due(clock, (look(at + n * STEP, verdict=other) for n in range(2, 50))) is None


def test_a_job_that_moved_may_hang_anew() -> None:
    clock = hung(finding())
    at = SECONDS + STEP
    assert not clock.observe(look(at, "calls"))
    assert not clock.reported
    due = first_due(clock, (look(at + n * STEP, verdict=finding()) for n in range(1, 50)))
    assert due is not None and due >= at + SECONDS
    assert clock.decide(look(due, verdict=finding()), spins=False) == "hang"


def test_time_in_which_the_machine_stood_still_does_not_count() -> None:
    clock = HangClock(SECONDS)
    clock.observe(look(0, verdict=finding()))
    clock.postpone(3600)
    assert not clock.observe(look(3600 + STEP, verdict=finding()))
    assert not clock.observe(look(3600 + 2 * STEP, verdict=finding()))
    assert clock.standing(3600 + 2 * STEP) == 2 * STEP


@given(moves=st.lists(st.booleans(), min_size=1, max_size=60), step=st.floats(1, 30))
def test_it_is_explained_if_and_only_if_nothing_has_moved_for_long_enough(moves: list[bool], step: float) -> None:
    clock = HangClock(SECONDS)
    last = 0.0
    since = 0  # looks
    for number, moved in enumerate(moves):
        at = number * step
        due = clock.observe(look(at, *(["calls"] if moved else []), verdict=finding()))
        if moved or number == 0:
            last, since = at, 0
        else:
            since += 1
        assert due == (since >= 2 and at >= last + SECONDS)


# ---- what has moved


GROUP = Group("0", "default_pg", "0-1")


def job(
    *,
    calls: int = 5,
    step: int = 3,
    functions: Sequence[str] = ("train",),
    read: Sequence[int] = (0, 0),
    cpu: float = 0.0,
    at: float = 1000.0,
    hints: dict[str, str] | None = None,
    lines: Sequence[int] = (10, 10),
) -> Snapshot:
    """Rank 0 waits in a collective; rank 1 is in some functions, with these marks, in two samples."""
    world = World()
    world.add(world.thread(own("train"), lib("all_reduce"), tid=100, call=FUTEX))
    moments = [
        world.thread(*(own(name, line) for name in functions), tid=101, call=None, state="R", hints=hints)
        for line in lines
    ]
    world.add_moving(
        *moments,
        inside=Introspection(loops=(Loop(101, "train", "/home/me/train.py", ("step",), (step,)),)),
    )
    track = Track(group=0, first=1, history=pack_rows([1] * calls), completed=calls - 1)
    recorder = Recorder(version="2.10", tracks=(track,))
    snapshot = replace(world.snapshot(), groups=(GROUP,), operations=(Operation(""), Operation("all_reduce")))
    process = snapshot.ranks[1].process
    samples = tuple(
        sample._replace(time=at + number, read_bytes=read[number], cpu=cpu)
        for number, sample in enumerate(process.samples)
    )
    second = replace(snapshot.ranks[1], process=replace(process, samples=samples), recorder=recorder)
    return replace(snapshot, ranks=(snapshot.ranks[0], second))


def moved(*snapshots: Snapshot) -> list[set[str]]:
    monitor = ProgressMonitor()
    return [set(monitor.moved(marks_of(one, explain(one), 2)).found) for one in snapshots]


def test_nothing_moves() -> None:
    assert moved(job(), job(at=1010), job(at=1020)) == [set(), set(), set()]


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("calls", {"calls": 6}),
        ("counter", {"step": 4}),
        ("functions", {"functions": ("train", "validate")}),
        ("bytes", {"read": (0, 100_000)}),
        ("bytes", {"read": (50_000_000, 50_000_000)}),
        ("cpu", {"cpu": 5.0}),
        ("little cpu", {"cpu": 0.5}),
    ],
)
def test_what_moves(what: str, changed: dict[str, Any]) -> None:
    assert moved(job(), job(at=1010, **changed))[1] == {what}


def test_what_breakranks_itself_reads_and_a_log_line_is_no_progress() -> None:
    assert moved(job(), job(at=1010, read=(300_000, 300_200)))[1] == set()


def test_functions_are_new_once() -> None:
    validate = {"functions": ("train", "validate")}
    assert moved(job(), job(at=1010, **validate), job(at=1020), job(at=1030, **validate)) == [
        set(), {"functions"}, set(), set(),
    ]  # fmt: skip


def test_ranks_of_a_restart_are_progress_and_a_lost_host_is_not() -> None:
    before, later = job(), job(at=1010)
    restarted = replace(
        later, ranks=tuple(replace(r, process=replace(r.process, pid=r.process.pid + 500)) for r in later.ranks)
    )
    assert moved(before, restarted)[1] == {"processes"}
    without_one = replace(later, ranks=later.ranks[1:])
    assert moved(before, without_one, job(at=1020)) == [set(), set(), set()]


def test_the_end_of_a_rank_is_progress_once() -> None:
    def dead(snapshot: Snapshot) -> Snapshot:
        first, second = snapshot.ranks
        return replace(snapshot, ranks=(first, replace(second, process=replace(second.process, state="Z"))))

    assert moved(job(), dead(job(at=1010)), dead(job(at=1020))) == [set(), {"ended"}, set()]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({"lines": (10, 11), "hints": {"train.#": "a"}}, True),
        ({"lines": (10, 10), "hints": {"train.#": "a"}}, False),  # may be one long call of C
        ({"lines": (10, 11)}, False),  # its values are not known
    ],
)
def test_a_loop_that_changes_nothing(made: dict[str, Any], expected: bool) -> None:
    assert may_spin(job(**made), RankSet([1])) is expected


# ---- the whole watch, over a job that is made up


class Clock:
    """Time that passes only when it is slept."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class MadeUpBackend:
    """One job. ``state`` returns its snapshot at a time, None if there is none, or raises an error."""

    is_local = True

    def __init__(self, clock: Clock, state: Callable[[float], Snapshot | None]) -> None:
        self._clock = clock
        self._state = state

    def seen(self) -> Snapshot:
        snapshot = self._state(self._clock.now - 1000)
        if snapshot is None:
            raise NoJobError("no job was found")
        return snapshot

    def job(self, key: str | None) -> MadeUpJob:
        return MadeUpJob(self, self.seen())

    def close(self) -> None:
        pass


class MadeUpJob:
    """It is also its own sampler."""

    def __init__(self, backend: MadeUpBackend, snapshot: Snapshot) -> None:
        self._backend = backend
        self._snapshot = snapshot
        self.job = snapshot.job
        self.ranks = tuple(FoundRank(rank.rank, rank.process.pid) for rank in snapshot.ranks)
        self.missing = snapshot.missing
        self.sampled = 0

    def sampler(self, **how: Any) -> MadeUpJob:
        self.sampled = 0
        return self

    def __enter__(self) -> MadeUpJob:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def sample(self, native: bool = False, recorders: bool = False, visit: str = "", samples: int = 1) -> None:
        self._backend.seen()
        self.sampled += 1

    def snapshot(self, keep: int | None = None) -> Snapshot:
        seen = self._backend.seen()
        if {rank.process.pid for rank in seen.ranks} == {rank.pid for rank in self.ranks}:
            return seen
        dead = (replace(rank, process=replace(rank.process, state="X")) for rank in self._snapshot.ranks)
        return replace(self._snapshot, ranks=tuple(dead))


def stuck(at: float, *, pid: int = 0, state: str = "S") -> Snapshot:
    """Rank 1 sleeps for an hour, and rank 0 waits for it."""
    world = World()
    world.add(world.thread(own("train"), lib("all_reduce"), tid=100 + pid, call=FUTEX, idle=at), state=state)
    world.add(world.thread(own("load"), tid=101 + pid, call=LONG_SLEEP, idle=at), state=state)
    snapshot = world.snapshot()
    ranks = tuple(
        replace(r, process=replace(r.process, pid=r.process.pid + pid, samples=shifted(r.process.samples, at)))
        for r in snapshot.ranks
    )
    return replace(snapshot, ranks=ranks)


def shifted(samples: tuple[Sample, ...], at: float) -> tuple[Sample, ...]:
    return tuple(sample._replace(time=sample.time + at) for sample in samples)


def watched(state: Callable[[float], Snapshot | None], *, wait: float = 0.0, most: int = 200) -> list[WatchEvent]:
    """Every event of a watch, except looks; it must end by itself."""
    clock = Clock()
    watch = HangWatch(
        WatchedJob(lambda: MadeUpBackend(clock, state)),  # type: ignore[arg-type, return-value]
        seconds=SECONDS,
        wait=wait,
        clock=clock,
        sleep=clock.sleep,
    )
    events: list[WatchEvent] = []
    for event in watch.events():
        assert len(events) < most, events[-5:]
        if not isinstance(event, LookTaken):
            events.append(event)
    return events


@pytest.fixture(autouse=True)
def time_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The full explanation waits in real time for another sample."""
    monkeypatch.setattr("breakranks.backend.sampling_loop.time.sleep", lambda seconds: None)


def kinds(events: list[WatchEvent]) -> list[type]:
    return [type(event) for event in events]


def test_a_hang_is_found_and_the_end_of_the_job() -> None:
    events = watched(lambda at: stuck(at) if at < 300 else None)
    assert kinds(events[:2]) == [JobFound, HangFound]
    hang = events[1]
    assert isinstance(hang, HangFound) and hang.known
    assert hang.diagnosis.verdict is not None and hang.diagnosis.verdict.culprits == "1"
    assert SECONDS <= hang.seconds < SECONDS + 2 * STEP
    assert kinds(events).count(HangFound) == 1 and kinds(events)[-1] is WatchEnded


def test_a_job_is_waited_for() -> None:
    events = watched(lambda at: stuck(at) if 100 < at < 130 else None, wait=200)
    assert JobFound in kinds(events) and kinds(events)[-1] is WatchEnded
    with pytest.raises(NoJobError):
        watched(lambda at: None, wait=50)


def test_what_cannot_be_seen_for_a_while_does_not_end_it() -> None:
    def state(at: float) -> Snapshot | None:
        if 20 < at < 200:
            raise BreakranksError("none of the hosts could be inspected")
        return stuck(at) if at < 400 else None

    events = watched(state, most=1000)
    assert JobNotSeen in kinds(events) and HangFound in kinds(events) and kinds(events)[-1] is WatchEnded


def test_after_a_restart_the_clock_begins_again() -> None:
    """The launcher has ended the ranks and starts others, every 50 seconds."""

    def state(at: float) -> Snapshot | None:
        if at >= 400:
            return None
        pid = int(at // 50) * 10
        return stuck(at % 50, pid=pid)

    events = watched(state)
    assert HangFound not in kinds(events), events
    assert kinds(events).count(JobFound) >= 5 and kinds(events)[-1] is WatchEnded


def test_it_tells_when_the_job_moves_again() -> None:
    events = watched(lambda at: stuck(at, pid=0 if at < 100 else 500) if at < 300 else None)
    wanted = [kind for kind in kinds(events) if kind in (HangFound, ProgressResumed)]
    assert wanted == [HangFound, ProgressResumed, HangFound]
