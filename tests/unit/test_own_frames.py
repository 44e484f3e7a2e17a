"""The threads and frames of breakranks in a rank are no part of what the rank does."""

from __future__ import annotations

from breakranks.explain.verdict import explain
from breakranks.explain.wait_chains import common_report
from breakranks.rankset import RankSet
from breakranks.show.json_output import stacks_json
from breakranks.show.wording.introspection_wording import report_text
from breakranks.snapshot.debugger_threads import before_agent, cut_agent, is_agent_stack, without_agents
from breakranks.snapshot.introspection import Introspection, Loop
from breakranks.snapshot.model import Call, Frame
from breakranks.snapshot.prefix_tree import cut, fold, fold_threads
from support.values import replace

from .jobs import OWN, THREADING, World, lib, own

AGENT = "/venv/lib/python3.11/site-packages/breakranks/rank/"
SELECTORS = "/usr/lib/python3.11/selectors.py"
BDB = "/usr/lib/python3.11/bdb.py"
AGENT_FRAMES = (
    lib("_bootstrap", THREADING),
    lib("run", THREADING),
    lib("_run", AGENT + "agent.py"),
    lib("turn", AGENT + "wire.py"),
    lib("select", SELECTORS),
)
STOPPED = (
    own("train"),
    lib("trace_dispatch", BDB),
    lib("user_line", AGENT + "stop.py"),
    lib("_cmdloop", "/usr/lib/python3.11/pdb.py"),
    lib("next", AGENT + "seat.py"),
    lib("at_prompt", AGENT + "seat.py"),
    lib("wait", THREADING),
)


def frames(*given: tuple[str, str, int]) -> tuple[Frame, ...]:
    return tuple(Frame(*one) for one in given)


def names(some: tuple[Frame, ...]) -> list[str]:
    return [frame.function for frame in some]


def attached() -> World:
    """A rank at a lock, with an agent that waits for a console."""
    world = World(span=20.0)
    main = world.thread(own("lookup"), native=("lock_PyThread_acquire_lock",), tid=100, call=Call("futex"))
    agent = world.thread(*AGENT_FRAMES, tid=7, name="breakranks", call=Call("epoll_wait", 5))
    world.add(main, agent)
    return world


def test_what_a_rank_does_is_not_what_an_agent_in_it_does() -> None:
    found = explain(attached().snapshot()).classes[0]
    assert (found.activity, found.where and found.where.function) == ("thread-wait", "lookup")


def test_agents_are_left_out_of_stacks_unless_all_is_shown() -> None:
    snapshot = attached().snapshot()
    assert [tree.name for tree in fold_threads(snapshot)] == ["main thread"]
    assert [tree.name for tree in fold_threads(snapshot, full=True)] == ["main thread", "breakranks"]
    assert len(stacks_json(snapshot, threads=True)["threads"]) == 1
    assert len(stacks_json(snapshot, threads=True, full=True)["threads"]) == 2


def test_one_that_has_not_begun_is_known_by_its_name() -> None:
    world = attached()
    begins = world.thread(native=("take_gil",), tid=8, name="breakranks")
    begins = replace(begins, python=False)
    world.ranks.clear()
    world.add(world.thread(own("lookup"), tid=100), begins)
    assert [tree.name for tree in fold_threads(world.snapshot(), native=True)] == ["main thread"]


def test_a_snapshot_without_agents_is_itself() -> None:
    world = World()
    world.add(world.thread(own("lookup"), tid=100), world.thread(*STOPPED, tid=7))
    snapshot = world.snapshot()
    assert without_agents(snapshot) is snapshot
    assert len(without_agents(attached().snapshot()).ranks[0].process.samples[-1].threads) == 1


def test_a_thread_that_is_stopped_is_the_jobs() -> None:
    assert is_agent_stack(frames(*AGENT_FRAMES))
    assert not is_agent_stack(frames(*STOPPED))
    assert is_agent_stack((Frame("<module>", "<string>", 1), Frame("answer", "<breakranks>", 3)))
    assert not is_agent_stack((Frame("<module>", "<string>", 1), *frames(own("main"))))


def test_only_that_it_is_at_a_prompt_is_left_of_our_frames() -> None:
    assert names(cut(frames(*STOPPED))) == ["train", "at_prompt"]
    called = frames(*STOPPED[:-1], own("asked"), lib("recv"))
    assert names(cut_agent(called)) == ["train", "at_prompt", "asked", "recv"]
    busy = (*frames(*STOPPED[:3]), Frame("epoll_wait", "libc.so.6", 0, True))
    assert names(cut_agent(busy)) == ["train"] == names(before_agent(frames(*STOPPED)))
    alone = frames(*AGENT_FRAMES[2:3])
    assert cut_agent(alone) == alone
    world = World()
    world.add(world.thread(*STOPPED, tid=100))
    assert names(tuple(node.frame for _, node in fold(world.snapshot()).walk())) == ["train", "at_prompt"]


def test_a_call_of_ours_is_not_what_a_stopped_thread_waits_for() -> None:
    world = World(span=20.0)
    world.add(world.thread(*STOPPED[:4], lib("select", SELECTORS), tid=100, call=Call("epoll_wait", 5)))
    found = explain(world.snapshot()).classes[0]
    assert (found.activity, found.where and found.where.function) == ("compute", "train")


def test_a_counter_is_said_once() -> None:
    world = World()
    loops = (
        Loop(tid=100, function="main", file=OWN, names=("i",), values=(3,)),
        Loop(tid=100, function="step", file=OWN, names=("i", "k"), values=(3, 5)),
    )
    world.add(world.thread(own("step"), tid=100), inside=Introspection(time=1.0, waits=(), loops=loops))
    process = world.ranks[0].process
    assert report_text(common_report({0: process}, RankSet([0]))) == "i 3, k 5"
    other = (loops[0], Loop(tid=100, function="step", file=OWN, names=("i", "k"), values=(4, 5)))
    process = replace(process, inside=Introspection(time=1.0, waits=(), loops=other))
    assert report_text(common_report({0: process}, RankSet([0]))) == "i 3 in main, i 4 in step, k 5"


def test_a_file_of_the_job_may_be_called_as_the_debugger_s() -> None:
    stack = frames(own("main"), ("run", "/home/me/proj/cmd.py", 5), lib("stop", AGENT + "api.py"))
    assert names(before_agent(stack)) == ["main", "run"]
    assert names(cut_agent(stack)) == ["main", "run"]
