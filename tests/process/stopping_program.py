"""A process that runs, and the engine in it, driven from a thread of ours while the main thread works.

Each scene is a function that arms things and prints what it saw, a JSON object a line.
"""

from __future__ import annotations

import bdb
import gc
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from breakranks.rank import api, thread_states
from breakranks.rank.running_pdb import RunningPdb
from breakranks.rank_messages import AnswerEvent, RankEvent, SaidEvent
from breakranks.rankset import RankSet

HERE = Path(__file__)
ME = RankSet([0])
PATIENCE = 60.0  # seconds for what must come
over = False
total = 0


def line_of(mark: str) -> int:
    lines = HERE.read_text().splitlines()
    return next(at for at, line in enumerate(lines, 1) if f"# {mark}  #" in f"{line}  #")


# ---- what the threads of the job do


def add(value: int) -> int:
    more = value  # add
    more += 1  # adds
    return more  # added


def working() -> None:
    global total
    while not over:
        total = add(total) % 1000  # working
        time.sleep(0.0005)


def spinning() -> None:
    n = 0
    while not over: n += 1  # noqa: E701  # spinning  # fmt: skip


def sleeping() -> None:
    while not over:
        time.sleep(1.0)  # sleeping
        global total
        total += 1  # woken


def locked() -> None:
    GATE.acquire()  # locked
    GATE.release()  # unlocked


def numbers() -> Iterator[int]:
    while not over:  # again
        yield total  # yielding
        time.sleep(0.0005)  # yielded


def once_more() -> Iterator[int]:
    yield total
    time.sleep(0.0005)  # resumed


def generating() -> None:
    for _ in numbers():  # generating
        pass  # resting


def advancing() -> None:
    held = numbers()
    while not over:
        next(held, None)
        time.sleep(0.3)


def keyed(value: int) -> int:
    time.sleep(0.0005)  # keyed
    return -value  # sorted


def sorting() -> None:
    while not over: sorted(range(5), key=keyed)  # noqa: E701  # sorting  # fmt: skip


def chained() -> None:
    """The call that it is blocked in is the first half of a line whose second half takes long."""
    endless(time.sleep(1.0))  # chained


def endless(value: None) -> None:
    while not over:  # loop
        time.sleep(0.0005)  # endless


def meeting() -> None:
    api.breakpoint(when=GATE.acquire())  # meeting
    GATE.release()  # met
    endless(None)


def raising() -> None:
    while not over:
        try:
            outer()
        except Exception:
            time.sleep(0.001)


def outer() -> None:
    list(iter([1, 2]))
    for one in numbers():
        inner({}, one)  # outer


def inner(table: dict[str, int], one: int) -> None:
    try:
        table["missing"]  # raises
    except KeyError as error:
        raise ValueError(one) from error  # raises again


def changing() -> None:
    while not over:
        changes(0)


def changes(count: int) -> None:
    label = "first"  # labels
    for turn in range(300):
        if turn == 100:
            count += 1  # counted
        time.sleep(0.0005)  # changes
    label = "last"  # labelled
    del label


GATE = threading.Lock()

# ---- driving


class Console:
    """In place of the console: hears what the rank tells, and answers each stop with lines."""

    def __init__(self) -> None:
        agent = api._start()
        assert agent is not None
        self.agent: Any = agent
        self.stops: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.answers: list[str] = []
        self._told = agent.server.tell
        agent.server.tell = self._hear  # type: ignore[method-assign]

    def _hear(self, event: RankEvent, client: Any = None) -> None:
        if isinstance(event, SaidEvent):
            self.said.append(event.text)
        if isinstance(event, AnswerEvent):
            self.answers.append(event.text)
        self._told(event, client)

    def stopped(self, seconds: float = PATIENCE) -> dict[str, Any] | None:
        """The next stop: its line, its reason and its thread; None if there is none in time."""
        until = time.monotonic() + seconds
        stop_state = self.agent.stop_state
        # So many looks at least: where the machine stood still the time is over before anybody could do anything.
        looks = 20 if seconds else 0
        while True:
            stop = stop_state.stop
            if stop is not None and stop.where and not stop_state.evaluating and not stop_state.releasing:
                return {"line": stop.where["line"], "reason": stop.reason, "thread": stop.thread}
            looks -= 1
            if time.monotonic() >= until and looks < 0:
                return None
            time.sleep(0.001)

    def line(self, text: str) -> str:
        """A line at the prompt; waits until it is answered, or the rank goes on."""
        from breakranks.rank.stop_state import LineRequest

        known = len(self.answers)
        assert self.agent.stop_state.put(LineRequest(None, known + 1, text, frozenset([0])))
        until = time.monotonic() + PATIENCE
        while len(self.answers) <= known and time.monotonic() < until:
            time.sleep(0.001)
        return self.answers[known] if len(self.answers) > known else "not answered"

    def go(self) -> None:
        stop = self.agent.stop_state.stop
        self.agent.stop_state.release("go")
        wait_until(lambda: self.agent.stop_state.stop is None or self.agent.stop_state.stop is not stop)

    def command(self, text: str) -> str:
        said, failed = RunningPdb(self.agent).do(text)
        return f"*** {said}" if failed and not said.startswith("***") else said

    def soon(self, ident: int | None = None) -> str:
        return self.agent.breakpoints.stop_soon("prompt", ME, "interrupt", thread=ident or 0)


def show(**found: Any) -> None:
    os.write(1, json.dumps(found, default=str).encode() + b"\n")  # standard output is pdb's while it does a command


def started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    wait_until(lambda: not thread.is_alive() or is_in(thread, work))
    time.sleep(0.1)
    return thread


def is_in(thread: threading.Thread, work: Callable[..., None]) -> bool:
    return any(one.f_code is work.__code__ for one in stack_of(thread))


def stack_of(thread: threading.Thread) -> list[Any]:
    frame = sys._current_frames().get(thread.ident or 0)
    return [] if frame is None else list(thread_states.stack(frame))


def wait_until(true: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < until:
        time.sleep(0.002)
    return true()


# ---- scenes: the main thread works, this runs in another


def halt(console: Console, work: str) -> None:
    """Stop a thread that works in some way, step it, and let it go."""
    thread = started(WORK[work], work) if work != "main" else threading.main_thread()
    if work in ("sleeping", "locked", "chained"):  # in C by now, or behind it
        wait_until(lambda: thread_states.blocked(thread.native_id or 0) or is_in(thread, endless))
    refused = console.soon(thread.ident)
    if work == "locked":
        GATE.release()
    found = console.stopped() or {}
    found["stepped"] = console.line("n").splitlines()[:1] if found else []
    found["after"] = (console.stopped() or {}).get("line")
    console.line("c")
    show(**found, refused=refused, bare=bare(console))


def withdrawn(console: Console) -> None:
    """Asked for while it is blocked, and taken back: it is never stopped."""
    thread = started(locked, "locked")
    console.soon(thread.ident)
    pending = console.agent.stop_state.pending
    blocked = thread_states.blocked(thread.native_id or 0)
    console.agent.breakpoints.withdraw()
    at_once = bare(console)
    GATE.release()
    went_on = wait_until(lambda: not thread.is_alive())
    show(
        pending=pending,
        blocked=blocked,
        running=thread_states.blocked(thread_states.native_of(thread_states.main()), 0.1),
        bare=at_once,
        went_on=went_on,
        stop=console.stopped(0.1),
    )


def interrupted_breakpoint(console: Console) -> None:
    """Asked for while it is blocked in a line that then calls a breakpoint: it stops there, and is stepped on."""
    thread = started(meeting, "meeting")
    wait_until(lambda: thread_states.blocked(thread.native_id or 0))
    refused = console.soon(thread.ident)
    GATE.release()
    hit = console.stopped()
    answer = console.line("n").splitlines()[:1] if hit else []
    after = console.stopped() or {}
    console.line("n")
    then = console.stopped() or {}
    console.line("c")
    show(
        refused=refused,
        hit=hit,
        answer=answer,
        after=(after.get("line"), after.get("reason")),
        then=then.get("line"),
        bare=bare(console),
    )


def breaks(console: Console) -> None:
    """Set, hit, stepped from, conditional, ignored, disabled, temporary and cleared, all while the rank runs."""
    add_line = line_of("add")
    state = console.agent.stop_state
    # It may have come there already.
    show(
        set=console.command(f"b stopping_program.py:{add_line}"),
        tracing=wait_until(lambda: state.tracing or state.stop is not None),
    )
    show(hit=console.stopped())
    show(stepped=console.line("n"), then=console.stopped())
    show(answer=console.line("c"), again=console.stopped())
    show(cleared=console.line("cl 1"), tracing=console.agent.stop_state.tracing)
    console.line("c")
    show(quiet=console.stopped(0.3), tracing=console.agent.stop_state.tracing, bare=bare(console))
    show(conditional=console.command(f"b stopping_program.py:{add_line} if value == 500"))
    show(hit=console.stopped(), value=console.line("p value"))
    console.line("c")
    # The answer comes before the thread is traced for what is armed.
    show(
        traced=wait_until(lambda: sys.version_info >= (3, 12) or bool(thread_states.tracers()))
        and bool(thread_states.tracers())
    )
    show(comma=console.command("condition 2 value == 600"), hit=console.stopped(), value=console.line("p value"))
    show(disabled=console.line("disable 2"))
    console.line("c")
    show(quiet=console.stopped(0.8))
    show(ignored=console.command("ignore 2 1"), listed=console.command("b"), enabled=console.command("enable 2"))
    show(hit=console.stopped(), value=console.line("p value"), hits=console.line("b"))
    console.line("cl 2")
    console.line("c")
    # In a line that was told of already and was of no interest then.
    show(late=console.command(f"tbreak stopping_program.py:{line_of('added')}"), hit=console.stopped())
    show(listed=console.line("b"))
    console.line("c")
    show(until=console.command(f"until stopping_program.py:{line_of('working once')}"), hit=console.stopped())
    console.line("c")
    show(function=console.command("b add"), hit=console.stopped())
    console.line("cl 5")
    console.line("c")
    show(quiet=console.stopped(0.2), bare=bare(console))


def everywhere(console: Console) -> None:
    """In a thread that runs already, in one that starts later, and in a generator that rests."""
    resting = once_more()
    next(resting)
    early = started(generating, "early")
    console.command(f"b {line_of('yielded')}")
    show(hit=console.stopped())
    console.line("cl 1")
    console.line("c")
    console.command(f"b stopping_program.py:{line_of('add')} if threading.current_thread().name == 'late'")
    late = started(working, "late")
    show(hit=console.stopped())
    console.line("cl 2")
    console.line("c")
    console.command(f"b stopping_program.py:{line_of('resumed')}")
    started(lambda: next(resting, None) and None, "resumes")
    show(hit=console.stopped())
    console.line("cl all")
    console.line("c")
    show(alive=early.is_alive() and late.is_alive(), bare=bare(console))


def wrong(console: Console) -> None:
    """What cannot be set, and how that is said."""
    import importlib.util
    import logging.handlers
    import multiprocessing.util

    assert importlib.util and logging.handlers and multiprocessing.util
    comment = f"b stopping_program.py:{line_of('---- what the threads of the job do')}"
    for text in ("b nowhere.py:3", "b stopping_program.py:1000000", comment, "b no_such", "b util.py:3"):
        show(text=text, said=console.command(text))
    for text in (f"b stopping_program.py:{line_of('add')} if value ==", "cl 77", "cl", "n", "catch 3", "watch 1 +"):
        show(text=text, said=console.command(text))
    show(bare=bare(console), tracing=console.agent.stop_state.tracing)


def watch(console: Console) -> None:
    show(set=console.command("watch scene.name"), unknown=console.command("watch no_such + 1"))
    show(cleared=console.command("cl 1"), bare=bare(console))
    started(changing, "changing")
    console.command(f"tbreak stopping_program.py:{line_of('labels')}")
    console.stopped()
    console.line("n")
    show(set=console.line("watch count"), label=console.line("watch label"), listed=console.line("b"))
    console.line("c")
    show(hit=console.stopped(), count=console.line("p count"))
    show(removed=console.line("unwatch 4"), none=console.line("unwatch 99"))
    console.line("c")
    wait_until(lambda: bool(console.said))
    show(said=console.said, stop=console.stopped(0.1), tracing=console.agent.stop_state.tracing, bare=bare(console))


def catch(console: Console) -> None:
    started(raising, "raising")
    show(set=console.command("catch ValueError"), listed=console.command("catch"))
    for _ in range(2):
        show(hit=console.stopped(), table=console.line("p table"))
        console.line("c")
    show(off=console.command("catch off"))
    while console.stopped(0.1):
        console.line("c")
    show(quiet=console.stopped(0.2))
    show(set=console.command("catch Exception"))
    console.stopped()
    found = []
    for _ in range(4):
        found.append((console.stopped() or {}).get("line"))
        console.line("c")
    console.command("catch off")
    while console.stopped(0.2):
        console.line("c")
    show(all=found, bare=bare(console))


def probes(console: Console) -> None:
    told: list[RankEvent] = []
    here = "stopping_program.py"
    agent = console.agent
    agent.breakpoints.probe(here, line_of("added"), "value % 2 == 0", ["value", "more", "unknown"], 3, told.append)
    wait_until(lambda: len(told) >= 3)
    time.sleep(0.1)
    show(told=[event.plain() for event in told], stop=console.stopped(0.05), bare=bare(console))
    told.clear()
    number = agent.breakpoints.probe(here, line_of("added"), "nobody", ["value"], 3, told.append)
    wait_until(lambda: bool(told))
    time.sleep(0.2)
    show(
        told=[event.plain() for event in told],
        dropped=agent.breakpoints.drop_probe(number),
        again=agent.breakpoints.drop_probe(number),
        bare=bare(console),
    )


def disarming(console: Console) -> None:
    """Fifty times: everything armed, and off again, while threads run, sleep, and are stepped."""
    quiet = [started(sleeping, "sleeping"), started(generating, "generating"), started(spinning, "spinning")]
    before = traces()
    grown = []
    for turn in range(50):
        console.command(f"b stopping_program.py:{line_of('woken')} if 0")
        console.command("catch LookupError")
        console.command("watch HERE")
        console.agent.breakpoints.probe("stopping_program.py", line_of("added"), "", ["value"], 0, lambda record: None)
        if turn % 10 == 0:
            during = traces()
        console.soon(quiet[0].ident)
        console.agent.breakpoints.disarm()
        console.agent.breakpoints.withdraw()
        # It may have taken its halt already, and be just about to stop.
        wait_until(lambda: console.stopped(0.0) is not None or not console.agent.breakpoints.events.inside)
        if console.stopped(0.0):
            console.go()
        if turn % 10 == 9:
            gc.collect()
            grown.append(len(gc.get_objects()))
    is_bare = bare(console)
    show(before=before, during=during, after=traces(), grown=grown[-1] - grown[0], bare=is_bare)
    # A generator that is stepped, and rests with what steps it.
    started(advancing, "advancing")
    yields = f"stopping_program.py:{line_of('yielding')}"
    console.command(f"tbreak {yields} if threading.current_thread().name == 'advancing'")
    for _ in range(2):  # to its return, and out of it
        console.stopped()
        console.line("s")
    console.stopped()
    console.line("c")
    rested = traces()["resting"]
    console.agent.breakpoints.disarm()
    is_bare = bare(console)  # the thread that was stepped may be just about to go on
    show(rested=rested, after=traces() == before, bare=is_bare)
    # A thread that is stepped over a call that is blocked in C.
    console.command(f"tbreak stopping_program.py:{line_of('locked')}")
    thread = started(locked, "locked")
    found = console.stopped()
    console.agent.stop_state.put(request("n"))
    wait_until(lambda: console.agent.stop_state.stop is None and thread_states.blocked(thread.native_id or 0))
    stepped = traces()
    console.agent.breakpoints.disarm()
    after = traces() == before
    GATE.release()
    ended = wait_until(lambda: not thread.is_alive())
    quiet = console.stopped(0.1)
    show(hit=found, stepped=stepped != before, after=after, ended=ended, quiet=quiet, bare=bare(console))


def request(text: str) -> Any:
    from breakranks.rank.stop_state import LineRequest

    return LineRequest(None, 999, text, frozenset([0]))


def forked(console: Console) -> None:
    """A child goes on where its parent would stop, also where another thread had our locks when it was forked."""
    console.command(f"b stopping_program.py:{line_of('added')} if os.getpid() != {os.getpid()}")
    console.command("catch ZeroDivisionError")
    found: list[int] = []
    gate, done = os.pipe(), os.pipe()
    thread = started(lambda: found.append(forking(gate[0], done[1])), "forking")
    state = Path(f"/proc/self/task/{thread.native_id}/syscall")
    wait_until(lambda: state.read_text().startswith(f"0 {gate[0]:#x} "))  # it reads there
    known = console.agent.breakpoints
    with known.lock, console.agent.stop_state.changed, console.agent.server._guard:
        os.write(gate[1], b".")
        select.select([done[0]], [], [], PATIENCE)  # the child has done its work, with nobody there to release them
    thread.join(PATIENCE)
    show(child=found)
    console.agent.breakpoints.disarm()


def forking(gate: int, done: int) -> int:
    pid = os.read(gate, 1) and os.fork()  # in one line: no code of ours runs between the two
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(int(pid), 0)[1])
    signal.alarm(60)  # should it stop, nobody would let it go
    for _ in range(3):
        add(1)
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        pass
    tools = [tool for tool in range(6) if sys.version_info >= (3, 12) and sys.monitoring.get_tool(tool)]
    os.write(done, b".")
    os._exit(10 if sys.gettrace() is None and not tools else 11)


def traced(console: Console) -> None:
    """A thread that somebody else traces: it is left as it is, or stopped and then left as it was."""

    def theirs(frame: Any, event: str, argument: Any) -> Any:
        return theirs

    def work() -> None:
        sys.settrace(theirs)
        working()

    thread = started(work, "theirs")
    said = console.command(f"b stopping_program.py:{line_of('add')} if threading.current_thread().name == 'theirs'")
    refused = console.soon(thread.ident)
    found = console.stopped(PATIENCE if sys.version_info >= (3, 12) else 1.0)  # before that it must not stop
    if found:
        console.line("c")
    console.agent.breakpoints.disarm()
    while console.stopped(0.1):
        console.go()
    mine = wait_until(lambda: thread_states.tracers().get(thread.ident or 0) == id(theirs))
    show(said=said, refused=refused, hit=found, theirs=mine)


def traces() -> dict[str, Any]:
    """Everything by which a debugger could be told from none."""
    frames = [one for frame in sys._current_frames().values() for one in thread_states.stack(frame)]
    tools = {tool: sys.monitoring.get_tool(tool) for tool in range(6)} if sys.version_info >= (3, 12) else {}
    table: Any = bdb.Breakpoint
    return {
        "tracers": len(thread_states.tracers()),
        "resting": sum(one.f_trace is not None for one in thread_states.resting()),
        "frames": sum(one.f_trace is not None or not one.f_trace_lines for one in frames),
        "hook": str(threading.gettrace()),
        "tools": [tool for tool, name in tools.items() if name],
        "table": [table.next, len(table.bplist), len(table.bpbynumber)],
    }


def bare(console: Console) -> bool:
    """Whether nothing at all is armed in this process any more; a thread that goes on may be just about to."""

    def is_bare() -> bool:
        found = traces()
        left = [found[name] for name in ("tracers", "frames", "tools")]
        return not any(left) and found["hook"] == "None"

    wait_until(lambda: console.agent.stop_state.stop is None and not console.agent.breakpoints.events.inside)
    return wait_until(is_bare)


WORK: dict[str, Callable[[], None]] = {
    one.__name__: one for one in (working, spinning, sleeping, locked, generating, sorting, chained, raising, changing)
}
SCENES: dict[str, Callable[..., None]] = {
    one.__name__: one
    for one in (
        halt,
        withdrawn,
        interrupted_breakpoint,
        breaks,
        everywhere,
        wrong,
        watch,
        catch,
        probes,
        disarming,
        forked,
        traced,
    )
}


def main() -> None:
    global over
    console = Console()
    GATE.acquire()
    scene = threading.Thread(target=SCENES[sys.argv[1]], args=(console, *sys.argv[2:]), name="breakranks scene")
    scene.start()
    while scene.is_alive():
        working_once()
    over = True


def working_once() -> None:
    global total
    total = add(total) % 1000  # working once
    time.sleep(0.0005)


if __name__ == "__main__":
    main()
