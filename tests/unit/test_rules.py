"""Each rule, from a literal situation: what it must report, and what must not mislead it."""

from __future__ import annotations

import pytest

from breakranks.errors import UsageError
from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.frame_meanings import FrameTable, from_toml
from breakranks.explain.verdict import explain
from breakranks.show.wording.finding_wording import evidence_lines, next_lines, summary
from breakranks.snapshot.introspection import Introspection, PolledFile
from breakranks.snapshot.model import Call, FileLock, Missing, OpenFile, Rank, Socket, Thread
from breakranks.snapshot.recorder_tables import Recorder
from support.values import replace

from .jobs import BATON, LOADER, LONG_SLEEP, PDB, SUBPROCESS, WORKER, World, lib, own


def verdict_of(world: World) -> tuple[str, str, str]:
    diagnosis = explain(world.snapshot())
    assert diagnosis.verdict is not None, diagnosis
    return diagnosis.verdict.kind, diagnosis.verdict.culprits, diagnosis.verdict.victims


def test_a_rank_that_sleeps_elsewhere_is_missing() -> None:
    world = World()
    for rank in range(4):
        world.add(world.thread(own("load_batch"), call=LONG_SLEEP) if rank == 2 else world.in_all_reduce())
    assert verdict_of(world) == ("missing-from-collective", "2", "0-1,3")
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None and verdict.where is not None
    assert (verdict.confidence, verdict.where.function) == ("certain", "load_batch")


def test_one_victim_and_many_culprits() -> None:
    """A majority is evidence, not proof: one rank is in a collective that no other rank has called."""
    world = World()
    world.add(world.in_all_reduce())
    for _ in range(7):
        world.add(world.thread(own("wait_for_work"), call=LONG_SLEEP))
    assert verdict_of(world) == ("missing-from-collective", "1-7", "0")


def test_a_short_sleep_is_watched_to_its_end_before_anything_is_said() -> None:
    world = World()
    world.add(world.thread(own("log"), call=Call("clock_nanosleep", left=2.0), idle=0.3))
    world.add(world.in_all_reduce(idle=0.5))
    diagnosis = explain(world.snapshot())
    assert diagnosis.verdict is None
    assert not diagnosis.settled
    assert diagnosis.wait > 1


def test_ranks_that_come_out_of_the_collective_and_go_in_again_are_healthy() -> None:
    world = World()
    for _ in range(3):
        world.add_moving(
            world.in_all_reduce(idle=0.0, hints={"step.i": "1"}),
            world.in_all_reduce(idle=0.0, hints={"step.i": "2"}),
            world.in_all_reduce(idle=0.0, hints={"step.i": "3"}),
        )
    diagnosis = explain(world.snapshot())
    assert diagnosis.verdict is None
    assert diagnosis.settled
    assert diagnosis.findings[0].kind == "moving"


def test_blocked_without_a_timeout_and_yet_run_means_moving() -> None:
    """The stacks are equal twice, but a thread in a wait without a timeout that used the CPU was released in
    between."""
    world = World()
    for _ in range(3):
        world.add(world.in_all_reduce(idle=0.0), ran=True)
    assert explain(world.snapshot()).verdict is None


def test_computing_ranks_that_nobody_waits_for_are_healthy() -> None:
    world = World()
    for _ in range(3):
        thread = world.thread(own("forward"), call=None, state="R", idle=0.0)
        later = replace(thread, ran=1_000_000_000)
        world.add_moving(thread, later, state="R")
    diagnosis = explain(world.snapshot())
    assert diagnosis.verdict is None and diagnosis.settled


def test_different_collectives_name_both_sides() -> None:
    world = World()
    world.add(world.in_barrier())
    for _ in range(3):
        world.add(world.in_all_reduce())
    assert verdict_of(world) == ("collective-mismatch", "0", "1-3")
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None
    assert "barrier" in summary(verdict) and "all_reduce" in summary(verdict)


def test_two_against_two_blames_no_side() -> None:
    world = World()
    for rank in range(4):
        world.add(world.in_barrier() if rank % 2 else world.in_all_reduce())
    assert verdict_of(world) == ("collective-mismatch", "0-3", "")


def test_receives_in_a_ring_are_a_deadlock_by_their_own_arguments() -> None:
    world = World()
    for rank in range(4):
        world.add(world.thread(own("exchange"), lib("recv"), hints={"recv.src": str((rank + 1) % 4)}))
    kind, culprits, victims = verdict_of(world)
    assert (kind, culprits, victims) == ("p2p-deadlock", "0-3", "")


def test_a_receive_from_a_rank_that_sleeps_is_no_deadlock() -> None:
    world = World()
    world.add(world.thread(own("exchange"), lib("recv"), hints={"recv.src": "1"}))
    world.add(world.thread(own("load"), call=LONG_SLEEP))
    world.add(world.thread(own("exchange"), lib("recv"), hints={"recv.src": "0"}))
    assert verdict_of(world) == ("missing-from-collective", "1", "0,2")


def test_an_exited_rank_is_named_before_ranks_that_compute() -> None:
    world = World(world_size=4)
    for _ in range(3):
        world.add(world.in_all_reduce())
    world.missing.append(Missing(ranks="3", reason="exited"))
    assert verdict_of(world) == ("rank-exited", "3", "0-2")


def test_a_finished_rank_that_nobody_waits_for_is_no_fault() -> None:
    world = World(world_size=3)
    for _ in range(2):
        world.add(world.thread(own("write_summary"), call=Call("clock_nanosleep", left=1.0), idle=0.1))
    world.missing.append(Missing(ranks="2", reason="exited"))
    assert explain(world.snapshot()).verdict is None


def test_ranks_that_wait_in_one_place_need_not_look_the_same() -> None:
    """GIVEN ranks that poll for a file, sampled at different moments of the loop THEN the missing rank is named."""
    world = World(world_size=3, span=20.0)
    for awoke in (False, True):
        world.add(
            world.thread(own("merge_parts", 17 + awoke), call=Call("clock_nanosleep", left=0.2), idle=20.0), ran=awoke
        )
    world.missing.append(Missing(ranks="2", reason="absent"))
    assert verdict_of(world) == ("rank-exited", "2", "0-1")


@pytest.mark.parametrize(("odd", "found"), [({1}, True), ({1, 3}, False), ({4}, False), ({0}, False)])
@pytest.mark.parametrize("left", [0.2, 9.0])
def test_a_loop_that_polls_may_once_be_seen_in_a_function_that_it_calls(
    odd: set[int], found: bool, left: float
) -> None:
    """Not so a rank that has worked and sleeps now, or one that sleeps long."""
    found = found and left < 1.0
    world = World(world_size=3, span=40.0)
    nap = world.thread(own("merge_parts", 17), call=Call("clock_nanosleep", left=left), idle=1.0)
    calls = world.thread(own("merge_parts", 16), own("path_of", 4), call=None, state="R", idle=0.0)
    for rank in range(2):
        process = world.process(100 + rank, *((calls if rank and at in odd else nap,) for at in range(5)))
        world.ranks.append(Rank(rank=rank, host="n1", process=process, local_rank=rank))
    world.missing.append(Missing(ranks="2", reason="exited"))
    verdict = explain(world.snapshot()).verdict
    assert (verdict is not None and verdict.culprits == "2") == found


@pytest.mark.parametrize(("function", "seconds"), [("<module>", 0.2), ("wait", 3000.0)])
def test_ranks_that_sleep_at_different_lines_are_in_one_loop_only_if_they_nap(function: str, seconds: float) -> None:
    world = World(world_size=3, span=20.0)
    for line in (40, 90):
        world.add(world.thread(own(function, line), call=Call("clock_nanosleep", left=seconds), idle=20.0))
    world.missing.append(Missing(ranks="2", reason="exited"))
    assert explain(world.snapshot()).verdict is None


@pytest.mark.parametrize(("cpu_percent", "kinds"), [(0.4, ["rank-exited"]), (30.0, [])])
def test_who_naps_on_a_busy_machine_waits_for_a_cpu_and_uses_none(cpu_percent: float, kinds: list[str]) -> None:
    """GIVEN ranks with short sleeps THEN the time that they waited for a CPU is not work; the time that they used
    is."""
    world = World(world_size=3, span=20.0)
    for rank in range(2):
        naps = [
            world.thread(own("merge_parts"), call=Call("clock_nanosleep", left=0.2), idle=20.0, ran=ran)
            for ran in (0, 2_000_000_000)
        ]
        process = world.process(100 + rank, *((nap,) for nap in naps), cpu_percent=cpu_percent)
        world.ranks.append(Rank(rank=rank, host="n1", process=process, local_rank=rank))
    world.missing.append(Missing(ranks="2", reason="absent"))
    assert [one.kind for one in explain(world.snapshot()).findings if not one.informational] == kinds


def test_ranks_of_other_hosts_are_a_guess_not_a_fact() -> None:
    world = World(world_size=4)
    for _ in range(2):
        world.add(world.in_all_reduce())
    world.missing.append(Missing(ranks="2-3", reason="elsewhere"))
    diagnosis = explain(world.snapshot())
    assert diagnosis.verdict is not None
    assert (diagnosis.verdict.culprits, diagnosis.verdict.confidence) == ("2-3", "guess")


def test_a_rank_that_never_came_to_the_rendezvous() -> None:
    world = World(world_size=3)
    for _ in range(2):
        world.add(world.thread(own("main"), lib("init_process_group")))
    world.missing.append(Missing(ranks="2", reason="absent"))
    assert verdict_of(world) == ("rendezvous-incomplete", "2", "0-1")


def test_a_stopped_rank_beats_everything_else_that_is_odd() -> None:
    world = World()
    world.add(world.thread(own("train"), call=None, state="T"), state="T")
    world.add(world.thread(own("load_batch"), call=LONG_SLEEP))
    world.add(world.in_all_reduce())
    assert verdict_of(world)[:2] == ("rank-stopped", "0")


def test_a_rank_that_polls_for_a_file_may_be_seen_between_two_sleeps() -> None:
    world = World(span=6.0)
    for rank in range(2):
        nap = Call("clock_nanosleep", left=0.03)
        moments = [(world.thread(own("wait_until_done"), native=("time_sleep",), call=call),) for call in (nap, None)]
        lock = FileLock(
            path="/tmp/weights.part", kind="file", waiter=100 + rank, holder=0, holder_command="", age=3600.0
        )
        world.ranks.append(
            Rank(rank=rank, host="n1", process=world.process(100 + rank, *moments, locks=(lock,)), local_rank=rank)
        )
    assert verdict_of(world) == ("stale-lock-file", "0-1", "")


@pytest.mark.parametrize("seen", ["asleep", "running"])
def test_of_ranks_that_poll_for_a_file_one_may_be_seen_at_the_test(seen: str) -> None:
    # GIVEN two ranks that poll for one file; the last sample has one of them in the test of its loop
    world = World(span=6.0)
    nap = Call("clock_nanosleep", left=0.03)
    asleep = world.thread(own("wait_until_done", 15), call=nap)
    call = nap if seen == "asleep" else None
    testing = world.thread(own("wait_until_done", 14), lib("exists", "<frozen genericpath>"), call=call)
    poll(world, asleep, asleep)
    poll(world, asleep, testing)

    # THEN both wait for it
    assert verdict_of(world) == ("stale-lock-file", "0-1", "")


def test_a_rank_that_computes_where_it_polled_does_not_wait_for_its_own_lock_file() -> None:
    # GIVEN a rank that slept until another process had removed a lock file, made it itself, and computes since
    world = World(span=8.0)
    moments = [world.thread(own("build", 12), call=Call("clock_nanosleep", left=0.08))] * 2
    for second in range(1, 8):
        unique = lib("unique", "/venv/lib/python3.11/site-packages/numpy/lib/_arraysetops_impl.py")
        moments.append(world.thread(own("build", 17), unique, call=None, state="R", ran=second * 1_000_000_000))
    poll(world, *moments, age=7.0)

    # THEN
    verdict = explain(world.snapshot()).verdict
    assert verdict is None or verdict.kind != "stale-lock-file"


def test_a_thread_that_works_where_it_has_slept_does_not_poll_for_the_file_of_another() -> None:
    # GIVEN a rank that computes where it slept before; another thread of it polls for a file
    world = World(span=6.0)
    asleep = world.thread(own("train", 15), call=Call("clock_nanosleep", left=0.03))
    works = world.thread(own("train", 14), lib("forward", "<frozen model>"), call=None)
    poll(world, asleep, works, poller=7)
    world.add(world.in_all_reduce())

    # THEN
    assert verdict_of(world)[0] != "stale-lock-file"


def test_ranks_that_poll_for_files_of_their_own_are_told_apart() -> None:
    world = World(span=6.0)
    for _ in range(2):
        poll(world, *[world.thread(own("wait_until_done"), call=Call("clock_nanosleep", left=0.03))] * 2,
             path=f"/tmp/{len(world.ranks)}.part")  # fmt: skip
    findings = explain(world.snapshot()).findings
    assert {finding.culprits: list(next_lines(finding)) for finding in findings} == {
        "0": ["rm /tmp/0.part"],
        "1": ["rm /tmp/1.part"],
    }


@pytest.mark.parametrize(("age", "verdict"), [(0.5, None), (100.0, "stale-lock-file")])
def test_a_lock_file_that_was_made_while_the_rank_waits_is_not_left_behind(age: float, verdict: str | None) -> None:
    # GIVEN a rank that has polled for a minute, for a file that other processes make and remove
    world = World(span=6.0)
    poll(world, *[world.thread(own("wait_until_done"), call=Call("clock_nanosleep", left=0.03))] * 2, age=age)

    # THEN it is watched further if the file is young
    found = explain(world.snapshot())
    assert (found.verdict.kind if found.verdict is not None else None) == verdict
    assert found.settled is (verdict is not None)


def poll(world: World, *moments: Thread, path: str = "/tmp/weights.part", poller: int = 1, age: float = 3600.0) -> None:
    """Add a rank whose thread ``poller`` polls for a file that no process holds."""
    rank = len(world.ranks)
    lock = FileLock(path=path, kind="own", waiter=100 + rank, holder=0, holder_command="", age=age)
    inside = Introspection(time=1001.0, polled=(PolledFile(poller, path, "own"),))
    process = world.process(100 + rank, *((moment,) for moment in moments), locks=(lock,), inside=inside)
    world.ranks.append(Rank(rank=rank, host="n1", process=process, local_rank=rank))


def test_a_lock_file_without_holder_is_stale_and_named() -> None:
    world = World()
    for rank in range(2):
        world.add(
            world.thread(own("load_ops"), lib("wait", BATON), call=Call("clock_nanosleep", left=0.1), idle=0.05),
            locks=(
                FileLock(path="/tmp/ext/lock", kind="file", waiter=100 + rank, holder=0, holder_command="", age=3600.0),
            ),
        )
    world.add(world.in_barrier())
    diagnosis = explain(world.snapshot())
    assert verdict_of(world) == ("stale-lock-file", "0-1", "2")
    assert diagnosis.verdict is not None
    assert "rm /tmp/ext/lock" in next_lines(diagnosis.verdict)
    assert any(finding.kind == "missing-from-collective" for finding in diagnosis.findings)


def test_a_lock_held_by_a_rank_in_a_barrier_is_that_ranks_fault() -> None:
    world = World()
    world.add(world.in_barrier())
    for rank in (1, 2):
        world.add(
            world.thread(own("write_cache"), call=Call("flock", 3)),
            locks=(
                FileLock(
                    path="/tmp/cache.lock",
                    kind="flock",
                    waiter=100 + rank,
                    holder=100,
                    holder_command="python train.py",
                    age=60.0,
                ),
            ),
        )
    assert verdict_of(world) == ("lock-held", "0", "1-2")


def test_a_lock_held_by_a_rank_that_sleeps_is_no_collective() -> None:
    world = World()
    world.add(world.thread(own("rebuild_index"), call=LONG_SLEEP))
    for rank in (1, 2):
        world.add(
            world.thread(own("write_cache"), call=Call("flock", 3)),
            locks=(
                FileLock(
                    path="/tmp/cache.lock",
                    kind="flock",
                    waiter=100 + rank,
                    holder=100,
                    holder_command="python train.py",
                    age=60.0,
                ),
            ),
        )
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None and verdict.where is not None
    assert (verdict.kind, verdict.culprits, verdict.victims) == ("lock-held", "0", "1-2")
    assert verdict.where.function == "rebuild_index"


def test_a_lock_held_by_an_outsider_names_it() -> None:
    world = World()
    world.add(
        world.thread(own("write_cache"), call=Call("flock", 3)),
        locks=(
            FileLock(
                path="/tmp/cache.lock", kind="flock", waiter=100, holder=4242, holder_command="backup --all", age=60.0
            ),
        ),
    )
    world.add(world.in_barrier())
    diagnosis = explain(world.snapshot())
    assert verdict_of(world) == ("lock-held", "0", "1")
    assert diagnosis.verdict is not None and "4242 (backup --all)" in summary(diagnosis.verdict)


def loading(world: World, *helpers: object, **more: object) -> World:
    wait = world.thread(own("train"), lib("_try_get_data", LOADER), call=Call("poll", 5, 4.0), idle=1.0)
    world.add(wait, children=helpers, **more)
    world.add(world.in_all_reduce())
    return world


def test_a_stuck_loader_worker_is_the_proof() -> None:
    world = World()
    worker = world.process(
        900, (world.thread(lib("_worker_loop", WORKER), own("fetch_remote", 77), call=Call("recvfrom", 4)),)
    )
    diagnosis = explain(loading(world, worker).snapshot())
    assert diagnosis.verdict is not None and diagnosis.verdict.where is not None
    assert (diagnosis.verdict.kind, diagnosis.verdict.culprits) == ("data-loading", "0")
    assert diagnosis.verdict.where.function == "fetch_remote"


def test_a_stopped_loader_worker_is_said() -> None:
    world = World()
    worker = world.process(900, (world.thread(lib("_worker_loop", WORKER), own("read"), call=None),), state="T")
    diagnosis = explain(loading(world, worker).snapshot())
    assert diagnosis.verdict is not None
    assert "stopped" in summary(diagnosis.verdict) and "kill -CONT 900" in next_lines(diagnosis.verdict)


def test_a_dead_loader_worker_is_said() -> None:
    world = World()
    worker = world.process(900, (), state="Z")
    assert explain(loading(world, worker).snapshot()).verdict.kind == "helper-dead"  # type: ignore[union-attr]


def test_a_rank_at_a_prompt() -> None:
    world = World()
    world.add(
        world.thread(own("train", 5), lib("cmdloop", PDB), call=Call("read", 0)),
        files=(OpenFile(0, "/dev/pts/3", "tty"),),
    )
    world.add(world.in_all_reduce())
    assert verdict_of(world) == ("debugger-prompt", "0", "1")


def test_a_read_of_the_terminal_is_a_prompt_whoever_calls_it() -> None:
    world = World()
    world.add(world.thread(own("ask"), call=Call("read", 0)), files=(OpenFile(0, "/dev/pts/3", "tty"),))
    world.add(world.in_all_reduce())
    assert verdict_of(world)[0] == "debugger-prompt"


def test_the_gil_held_by_a_thread_that_sleeps() -> None:
    world = World()
    world.add(world.thread(own("read_sensor"), call=LONG_SLEEP, gil=True, native=("ffi_call", "sleep")))
    world.add(world.in_all_reduce())
    assert verdict_of(world)[:2] == ("gil-held", "0")


def test_two_threads_at_locks_are_a_deadlock() -> None:
    world = World()
    native = ("lock_PyThread_acquire_lock", "futex_wait")
    world.add(
        world.thread(own("train"), native=native),
        world.thread(own("flush"), tid=2, name="writer", native=native),
    )
    world.add(world.in_all_reduce())
    diagnosis = explain(world.snapshot())
    assert verdict_of(world)[:2] == ("thread-deadlock", "0")
    assert diagnosis.verdict is not None
    assert any("writer" in line for line in evidence_lines(diagnosis.verdict))


def test_a_thread_in_a_collective_counts_for_a_main_thread_that_joins_it() -> None:
    world = World()
    join = world.thread(own("main"), lib("join", "/usr/lib/python3.11/threading.py"))
    world.add(join, world.thread(own("step"), lib("all_reduce"), tid=2, name="trainer"))
    world.add(world.thread(own("load_batch"), call=LONG_SLEEP))
    assert verdict_of(world) == ("missing-from-collective", "1", "0")


@pytest.mark.parametrize(
    "last", [Call("clock_nanosleep", left=0.4), None, Call("pause")], ids=["asleep", "between", "pause"]
)
def test_a_thread_in_a_collective_counts_for_a_main_thread_that_only_sleeps(last: Call | None) -> None:
    # GIVEN a main thread that sleeps a second at a time; the last sample may be from between two sleeps
    world = World(span=6.0)
    main = [world.thread(own("main"), native=("time_sleep",), tid=100, call=call, idle=0.5)
            for call in (Call("clock_nanosleep", left=0.7), last)]  # fmt: skip
    step = world.thread(own("step"), lib("all_reduce"), tid=2, name="trainer")
    process = world.process(100, *((moment, step) for moment in main))
    world.ranks.append(Rank(rank=0, host="n1", process=process, local_rank=0))
    world.add(world.thread(own("load_batch"), call=LONG_SLEEP))
    assert verdict_of(world) == ("missing-from-collective", "1", "0")


def test_a_subprocess_is_named_by_its_command() -> None:
    world = World()
    child = world.process(900, (), command=("rsync", "-a", "/ckpt", "backup:/"), python=False)
    world.add(world.thread(own("upload"), lib("run", SUBPROCESS), call=Call("wait4")), children=(child,))
    world.add(world.in_barrier())
    diagnosis = explain(world.snapshot())
    assert verdict_of(world)[0] == "subprocess-wait"
    assert diagnosis.verdict is not None and "rsync -a /ckpt backup:/" in summary(diagnosis.verdict)


def test_a_socket_is_named_by_its_peer() -> None:
    world = World()
    world.add(
        world.thread(own("fetch"), call=Call("recvfrom", 7)),
        sockets=(Socket(fd=7, protocol="tcp", local="10.0.0.1:4000", peer="10.0.0.2:80", status="established"),),
    )
    world.add(world.in_barrier())
    diagnosis = explain(world.snapshot())
    assert verdict_of(world)[0] == "socket-wait"
    assert diagnosis.verdict is not None and "10.0.0.2:80" in summary(diagnosis.verdict)


def test_a_server_that_waits_for_clients_is_not_stuck() -> None:
    world = World()
    world.add(
        world.thread(own("serve"), call=Call("accept4", 3)),
        sockets=(Socket(fd=3, protocol="tcp", local="0.0.0.0:80", peer="", status="listening"),),
    )
    assert explain(world.snapshot()).verdict is None


def test_a_file_in_state_d_is_named() -> None:
    world = World()
    world.add(
        world.thread(own("load_shard"), call=Call("read", 9), state="D"),
        state="D",
        files=(OpenFile(9, "/mnt/nfs/shard-7", "file"),),
    )
    world.add(world.in_all_reduce())
    diagnosis = explain(world.snapshot())
    assert verdict_of(world)[:2] == ("blocked-io", "0")
    assert diagnosis.verdict is not None and "/mnt/nfs/shard-7" in summary(diagnosis.verdict)


def busy(world: World, functions: list[str], seconds: float) -> Diagnosis:
    """Rank 0 computes in these functions, one per sample, while rank 1 has waited for ``seconds``."""
    threads = []
    for index, function in enumerate(functions):
        frames = [own("main", 5), own("wait_for_batch", 16)] if "poll" in functions else [own("main", 5)]
        frames += [own(function, 10)] if function else []
        marks = {f"{name}.#": "00000000" for name, _, _ in frames}
        thread = world.thread(*frames, call=None, state="R", idle=0.0, hints=marks)
        # The loop of the interpreter alone: the merged stack has no C frame below the Python frames.
        thread = replace(thread, native=thread.stack)
        threads.append(replace(thread, ran=int(index * 1e9 * world.span / (len(functions) - 1))))
    world.add_moving(*threads, state="R")
    world.add(world.in_all_reduce(idle=seconds))
    return explain(world.snapshot())


def test_a_loop_in_one_function_while_others_wait() -> None:
    verdict = busy(World(), ["poll", "", "poll"] * 2, 60).verdict
    assert verdict is not None and (verdict.kind, verdict.culprits) == ("busy-loop", "0")


def test_ranks_that_spin_in_one_loop_share_a_finding() -> None:
    # GIVEN two ranks that were last seen at different lines of the loop
    world = World()
    for lines in (14, 15) * 3, (15, 14) * 3:
        moments = []
        for index, line in enumerate(lines):
            hints = {"spin.#": "00000000"}
            thread = world.thread(own("spin", line), call=None, state="R", idle=0.0, hints=hints)
            moments.append(replace(thread, native=thread.stack, ran=int(index * 2e8)))
        world.add_moving(*moments, state="R")
    for _ in range(3):
        world.add(world.in_all_reduce(idle=60))
    assert verdict_of(world) == ("busy-loop", "0-1", "2-4")


def test_work_that_moves_while_others_wait_long_is_a_straggler() -> None:
    verdict = busy(World(), ["forward", "backward", "forward"] * 2, 60).verdict
    assert verdict is not None and (verdict.kind, verdict.culprits) == ("straggler", "0")


def test_two_looks_are_not_enough_to_tell_a_loop_from_work() -> None:
    diagnosis = busy(World(), ["poll", "poll"], 60)
    assert diagnosis.verdict is None and not diagnosis.settled


def test_work_that_moves_while_others_wait_a_moment_is_nothing() -> None:
    diagnosis = busy(World(), ["forward", "backward", "forward"], 0.4)
    assert diagnosis.verdict is None


def test_a_rank_whose_stack_cannot_be_read_is_only_a_guess() -> None:
    world = World()
    world.add(world.thread(call=None, idle=None))
    world.add(world.in_all_reduce())
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None and (verdict.culprits, verdict.confidence) == ("0", "guess")


def test_all_in_one_place_and_one_a_step_behind() -> None:
    world = World()
    for rank in range(3):
        world.add(world.in_all_reduce(hints={"step.i": "4" if rank == 1 else "5"}))
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.culprits) == ("collective-mismatch", "1")
    assert "4 on rank 1" in summary(verdict)


def test_a_meaning_of_the_users_own() -> None:
    rows = from_toml({"meaning": [{"activity": "prompt", "file": "mylib/ask.py", "function": "confirm"}]})
    world = World()
    world.add(world.thread(own("train"), lib("confirm", "/venv/lib/python3.11/site-packages/mylib/ask.py")))
    world.add(world.in_all_reduce())
    verdict = explain(world.snapshot(), FrameTable(rows)).verdict
    assert verdict is not None and verdict.kind == "debugger-prompt"


def test_a_meaning_of_a_frame_in_a_checkout() -> None:
    # GIVEN a library that is not installed, and a frame of it that calls another of its functions
    rows = from_toml({"meaning": [{"activity": "prompt", "file": "checkout/ask.py", "function": "confirm"}]})
    world = World()
    file = "/home/me/checkout/ask.py"
    world.add(world.thread(own("train", 12), lib("confirm", file), lib("wait_for_key", file)))
    world.add(world.in_all_reduce())

    # THEN the rank is where the library was called
    verdict = explain(world.snapshot(), FrameTable(rows)).verdict
    assert verdict is not None and verdict.kind == "debugger-prompt"
    assert verdict.where is not None and (verdict.where.function, verdict.where.line) == ("train", 12)


@pytest.mark.parametrize(
    "row", [{"activity": "flying", "function": "f"}, {"function": "f"}, {"activity": "io", "function": "("}]
)
def test_a_bad_meaning_is_refused_with_its_number(row: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="meaning 1"):
        from_toml({"meaning": [row]})


def test_a_loop_that_counts_is_work() -> None:
    world = World()
    threads = []
    for index in range(6):
        thread = world.thread(own("tokenize", 11), call=None, state="R", idle=0.0, hints={"tokenize.#": f"{index:08x}"})
        threads.append(replace(thread, native=thread.stack, ran=int(index * 2e8)))
    world.add_moving(*threads, state="R")
    world.add(world.in_all_reduce(idle=60))
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None and verdict.kind == "straggler"


def test_a_pause_between_steps_is_watched_to_its_end() -> None:
    """The others have waited for six seconds, and the sleep ends in three: not a hang yet."""
    world = World()
    first = world.thread(own("throttle"), call=Call("clock_nanosleep", left=4.0), idle=6.0)
    world.add_moving(first, replace(first, call=Call("clock_nanosleep", left=3.0)))
    world.add(world.in_all_reduce(idle=6.0))
    diagnosis = explain(world.snapshot())
    assert diagnosis.verdict is None
    assert diagnosis.known_end and 3 <= diagnosis.wait <= 4


def test_a_sleep_that_begins_again_in_the_same_place_is_a_loop_that_waits() -> None:
    world = World()
    naps = [world.thread(own("wait_for_flag"), call=Call("clock_nanosleep", left=0.5), idle=0.1) for _ in range(3)]
    world.add_moving(*naps)
    world.add(world.in_all_reduce(idle=60.0))
    assert verdict_of(world)[:2] == ("missing-from-collective", "0")


@pytest.mark.parametrize(("read", "kind"), [(1000.2, None), (1001.0, "missing-from-collective")])
def test_a_recorder_that_was_read_before_a_sleep_ended_says_nothing_of_what_came_after_it(
    read: float, kind: str | None
) -> None:
    """The sleeper woke at 1000.5: it may have entered the call, and the others may be in the next one."""
    world = World()
    naps = [world.thread(own("throttle"), call=Call("clock_nanosleep", left=0.5), idle=0.1) for _ in range(3)]
    world.add_moving(*naps)
    world.add(world.in_all_reduce(idle=9.0))
    world.ranks[1] = replace(world.ranks[1], recorder=Recorder(version="2.10", time=read))
    diagnosis = explain(world.snapshot())
    assert (diagnosis.verdict.kind if diagnosis.verdict is not None else None) == kind, diagnosis


def test_data_that_comes_in_slowly_is_no_hang() -> None:
    world = World(span=2.0)
    wait = world.thread(own("download"), call=Call("recvfrom", 7), idle=0.02)
    world.add_moving(
        wait,
        wait,
        wait,
        sockets=(Socket(fd=7, protocol="tcp", local="10.0.0.1:4000", peer="10.0.0.2:80", status="established"),),
    )
    world.add(world.in_barrier())
    world.ranks[1] = replace(
        world.ranks[1], process=world.process(101, (world.thread(own("finish"), lib("barrier"), idle=8.0),))
    )
    assert explain(world.snapshot()).verdict is None


def test_one_who_looked_besides_us_does_not_make_a_hang_healthy() -> None:
    """The waiting thread ran in one of several quiet spans: another tool woke it."""
    world = World()
    for _ in range(2):
        world.add(world.in_all_reduce())
        process = world.ranks[-1].process
        samples = tuple(
            replace(process.samples[0], time=1000.0 + i, quiet_ran=(1,) if i == 2 else () if i else None)
            for i in range(6)
        )
        world.ranks[-1] = replace(world.ranks[-1], process=replace(process, samples=samples))
    world.add(world.thread(own("load_batch"), call=LONG_SLEEP))
    assert verdict_of(world) == ("missing-from-collective", "2", "0-1")


def test_ranks_that_part_in_installed_code_are_told_apart_there() -> None:
    """All ranks are at trainer.fit(). The hook that one of them hangs in is the place to name."""
    hooks = "/venv/lib/python3.11/site-packages/fancytrainer/hooks.py"
    loop = "/venv/lib/python3.11/site-packages/fancytrainer/loop.py"
    world = World()
    world.add(world.thread(own("main", 11), lib("on_step_end", hooks, 5), call=LONG_SLEEP))
    for _ in range(2):
        world.add(world.thread(own("main", 11), lib("step", loop, 9), lib("all_reduce")))
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None and verdict.where is not None
    assert (verdict.culprits, verdict.where.function) == ("0", "on_step_end")


def test_the_thread_that_does_the_collectives_elsewhere_is_the_one_that_matters_here() -> None:
    world = World()
    nap = Call("clock_nanosleep", left=0.6)
    for rank in range(3):
        main = world.thread(own("main"), call=nap, idle=0.2)
        stuck = world.thread(own("next_task", 40), tid=2, name="comm", call=Call("recvfrom", 7))
        at_work = world.thread(own("reduce", 50), lib("all_reduce"), tid=2, name="comm")
        world.add(main, stuck if rank == 1 else at_work)
    verdict = explain(world.snapshot()).verdict
    assert verdict is not None and verdict.where is not None
    assert (verdict.culprits, verdict.victims, verdict.where.function) == ("1", "0,2", "next_task")


def test_a_stopped_rank_is_said_while_others_still_move() -> None:
    world = World()
    world.add(world.thread(own("train"), call=None, state="T"), state="T")
    world.add_moving(world.thread(own("forward"), idle=0.0), world.in_all_reduce(idle=0.0))
    assert verdict_of(world)[:2] == ("rank-stopped", "0")


def test_a_rank_that_sleeps_while_the_others_go_on_without_it_is_none() -> None:
    world = World()
    world.add(world.thread(own("heartbeat"), call=LONG_SLEEP))
    for _ in range(2):
        world.add_moving(
            world.in_all_reduce(idle=0.0, hints={"step.i": "1"}),
            world.in_all_reduce(idle=0.0, hints={"step.i": "2"}),
            world.in_all_reduce(idle=0.0, hints={"step.i": "3"}),
        )
    assert explain(world.snapshot()).verdict is None


def gpu_wait(world: World) -> Thread:
    native = ("THCPModule_cudaSynchronize", "cudaDeviceSynchronize", "cuCtxSynchronize_v2")
    return world.thread(own("wait_for_kernel"), native=native, call=None, state="R", idle=0.0)


def test_a_rank_that_waits_for_its_gpu_while_others_are_in_a_barrier() -> None:
    world = World()
    world.add(gpu_wait(world), state="R")
    for _ in range(2):
        world.add(world.in_barrier())
    assert verdict_of(world) == ("missing-from-collective", "0", "1-2")


def test_ranks_that_wait_for_their_gpus_wait_for_the_one_that_does_not() -> None:
    """NCCL: the collective is on the GPU, and the rank that never launched it is elsewhere."""
    world = World()
    for _ in range(2):
        world.add(gpu_wait(world), state="R")
    world.add(world.thread(own("load_batch"), call=LONG_SLEEP))
    assert verdict_of(world) == ("missing-from-collective", "2", "0-1")
