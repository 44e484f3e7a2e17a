"""Reading sources, reading variables in a process, and interpreting both together.

The payload runs here as in a rank, on real threads of this process. It must not call any method of the objects that it
reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from breakranks.inject import mailbox
from breakranks.introspect import process_answers, source_analysis
from breakranks.introspect.interpretation import interpret
from breakranks.introspect.library_waits import may_wait
from breakranks.introspect.source_analysis import HeldLock, PolledPath, SourceFile, path_of
from breakranks.introspect.wanted_variables import SeenThread, SourceCache, merged, questions
from breakranks.snapshot.introspection import BY_ACQUIRE, BY_LOCK, BY_WITH, Introspection
from breakranks.snapshot.model import Frame

DEADLINE = 60.0


def payload() -> types.SimpleNamespace:
    scope: dict[str, Any] = {"__name__": "breakranks_payload"}
    exec(compile(mailbox.payload("frame_values"), "<breakranks>", "exec"), scope)
    return types.SimpleNamespace(**scope)


FACTS = payload()


def source(text: str) -> SourceFile:
    return SourceFile(textwrap.dedent(text).lstrip("\n"))


# --- what the source says ---


def test_a_with_is_waited_for_at_its_line_and_held_below_it() -> None:
    code = source("""
        def f(self):
            with self.pool.lock, other:
                work()
            rest()
    """)
    assert code.line("f", 2).waits == ("self.pool.lock", "other")
    assert code.line("f", 2).held == ()
    assert code.line("f", 3).held == (HeldLock("self.pool.lock", 2, True), HeldLock("other", 2, True))
    assert code.line("f", 3).waits == ()
    assert code.line("f", 4) == source_analysis.NOTHING._replace(receivers=())


def test_a_with_over_several_lines() -> None:
    code = source("""
        def f():
            with (
                first,
                second,
            ):
                work()
    """)
    assert code.line("f", 3).waits == ("first", "second")
    assert [one.path for one in code.line("f", 6).held] == ["first", "second"]


def test_acquire_counts_until_its_release() -> None:
    code = source("""
        def f(self):
            self.lock.acquire()
            try:
                work()
            finally:
                self.lock.release()
            rest()
    """)
    assert code.line("f", 2).waits == ("self.lock",)
    assert code.line("f", 4).held == (HeldLock("self.lock", 2, False),)
    assert code.line("f", 7).held == ()


def test_on_one_line_nobody_can_tell_before_from_in() -> None:
    code = SourceFile("with lock: work()")
    assert code.line("<module>", 1).waits == ("lock",)
    assert code.line("<module>", 1).held == (HeldLock("lock", 1, False),)


def test_calls_and_subscripts_are_not_followed() -> None:
    code = source("""
        def f(self):
            with self.locks[3], self.make(), open(p):
                work()
    """)
    assert code.line("f", 2).waits == ()
    assert code.line("f", 3).held == ()


def test_what_runs_in_a_frame_of_its_own_is_not_of_this_one() -> None:
    code = source("""
        def f():
            with lock:
                def g():
                    work()
            g()
    """)
    assert code.line("g", 4).held == ()
    assert code.line("f", 5).held == ()


def test_the_variables_of_loops_outermost_first() -> None:
    code = source("""
        def train(self, global_step):
            for epoch in range(3):
                for i, (x, y) in enumerate(loader):
                    while tries < limit:
                        tries += 1
                    self.step = 4
                else:
                    done()
    """)
    assert code.line("train", 4).loops == ("epoch", "i", "x", "y", "tries", "global_step", "self.step")
    assert "i" in code.line("train", 6).loops
    assert code.line("train", 8).loops[:2] == ("epoch", "global_step")  # the else of a loop is after it


def test_a_counter_that_is_no_loop_s_and_one_of_a_loop_that_is_over() -> None:
    code = source("""
        def train():
            global_step = 0
            for i in range(3):
                work()
            rest()
    """)
    assert code.line("train", 4).loops == ("i", "global_step")
    assert code.line("train", 5).loops == ("global_step",)


def test_a_loop_variable_that_is_not_used_is_no_counter() -> None:
    code = source("""
        def train():
            for step in steps:
                for _ in range(3):
                    work()
    """)
    assert code.line("train", 4).loops == ("step",)


def test_a_function_of_the_same_name_is_told_by_its_lines() -> None:
    code = source("""
        class A:
            def run(self):
                for a in x:
                    work()
        class B:
            def run(self):
                for b in x:
                    work()
    """)
    assert code.line("run", 4).loops == ("a",)
    assert code.line("run", 8).loops == ("b",)
    assert code.line("run", 99).loops == ()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("while os.path.exists(self.path): sleep(1)", [PolledPath("self.path", True)]),
        ("while self.path.exists() and time.time() < end: time.sleep(1)", [PolledPath("self.path", True)]),
        ("while not os.path.exists(self.path): sleep(1)", [PolledPath("self.path", False)]),
        ("while os.path.exists(run_flag): train(); sleep(1)", [PolledPath("run_flag", False)]),  # a switch, and no lock
        ("while True: os.open(path, os.O_CREAT | os.O_EXCL)", [PolledPath("path", True)]),
        ("while True: open(path)", [PolledPath("path", False)]),
        ("while True: open(path, 'x')", [PolledPath("path", True)]),
        ("while True: os.mkdir(path)", [PolledPath("path", True)]),
        ("while True: path.mkdir(exist_ok=True)", [PolledPath("path", False)]),
        ("while True: fcntl.flock(self.file, LOCK_EX | LOCK_NB)", [PolledPath("self.file", True)]),
        ("while True: os.path.exists(name())", []),
        ("os.path.exists(path)", []),
    ],
)
def test_files_that_a_loop_looks_at(body: str, expected: list[PolledPath]) -> None:
    assert list(SourceFile(body).line("<module>", 1).polled) == expected


@pytest.mark.parametrize("text", ["", "def f(:", "\0", "(" * 5000, "x = " + "-" * 50_000 + "1", "a" + ".b" * 3000])
def test_sources_that_are_none(text: str) -> None:
    code = SourceFile(text)
    assert code.line("f", 1) == source_analysis.NOTHING
    code.line("<module>", 1)  # whatever it says


def test_a_path_of_names_only() -> None:
    import ast

    def expression(text: str) -> ast.expr:
        return ast.parse(text, mode="eval").body

    assert path_of(expression("a.b.c")) == "a.b.c"
    assert path_of(expression("f().b")) == ""
    assert path_of(expression("a[0].b")) == ""
    assert path_of(expression("a" + ".b" * 20)) == ""


# --- what the payload gives away, and what it leaves alone ---


class Counts:
    """Counts the calls of its methods."""

    called: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> object:
        self.called.append(f"getattr {name}")
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        self.called.append("eq")
        raise RuntimeError

    def __hash__(self) -> int:
        self.called.append("hash")
        raise RuntimeError

    def __repr__(self) -> str:
        self.called.append("repr")
        raise RuntimeError

    def __len__(self) -> int:
        self.called.append("len")
        raise RuntimeError

    def __bool__(self) -> bool:
        self.called.append("bool")
        raise RuntimeError

    @property
    def lock(self) -> object:
        self.called.append("property")
        raise RuntimeError

    @property
    def __class__(self) -> type:  # type: ignore[override]
        self.called.append("class")
        raise RuntimeError


class Everything(Counts):
    def __getattribute__(self, name: str) -> object:
        Counts.called.append(f"getattribute {name}")
        raise RuntimeError


class Meta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        Counts.called.append("name of a class")
        raise RuntimeError

    def __eq__(cls, other: object) -> bool:
        Counts.called.append("eq of a class")
        raise RuntimeError

    __hash__ = type.__hash__


class Made(metaclass=Meta):
    pass


class Hidden:
    """Its dictionary is a property."""

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        Counts.called.append("dict")
        raise RuntimeError


class OfThread(threading.local):
    def __init__(self) -> None:
        Counts.called.append("init of a thread's own")
        self.path = "x"


@pytest.fixture
def nothing_called() -> Iterator[None]:
    Counts.called.clear()
    yield
    assert Counts.called == []


@pytest.mark.usefixtures("nothing_called")
def test_nothing_of_an_object_is_called() -> None:
    for one in (Counts(), Everything(), Made(), Made, Hidden(), [Counts(), Counts()], {1: Counts()}):
        FACTS._described(one)
        for name in ("lock", "missing", "_native_id", "__dict__", "__class__"):
            found = FACTS._attribute(one, name)
            assert found is FACTS._GONE or type(found) is not property


@pytest.mark.usefixtures("nothing_called")
def test_a_frame_full_of_such_objects() -> None:
    def inside() -> bytes:
        counts, every, hidden = Counts(), Everything(), Hidden()  # noqa: F841
        line = sys._getframe().f_lineno + 2
        wanted = ["counts", "counts.lock", "every.lock", "hidden.x", "counts.a.b", "@ended", "@refers every", "@loader"]
        return FACTS.answer({"asked": {__file__: {f"inside:{line - 1}": wanted, f"inside:{line}": wanted}}})

    said = process_answers.read(inside())
    mine = next(one for one in said.threads if one.ident == threading.get_ident())
    (asked,) = mine.frames
    assert asked.values["counts.lock"] is None
    assert asked.values["counts"]["kinds"][0].endswith("Counts")


def test_a_thread_s_own_values_are_not_made_for_ours() -> None:
    own = OfThread()
    Counts.called.clear()
    found: list[object] = []
    other = threading.Thread(target=lambda: found.append(FACTS._attribute(own, "path")))
    other.start()
    other.join()
    assert found == [FACTS._GONE]
    assert Counts.called == []


def test_attributes_that_are_simply_there() -> None:
    class Slots:
        __slots__ = ("guard", "unset")
        shared = threading.Lock()

    class Plain:
        limit = 3

        def method(self) -> None: ...

    slots, plain = Slots(), Plain()
    slots.guard = guard = threading.Lock()
    plain.name = "x"  # type: ignore[attr-defined]
    assert FACTS._attribute(slots, "guard") is guard
    assert FACTS._attribute(slots, "unset") is FACTS._GONE
    assert FACTS._attribute(slots, "shared") is Slots.shared
    assert FACTS._attribute(plain, "limit") == 3
    assert FACTS._attribute(plain, "name") == "x"
    assert FACTS._attribute(plain, "method") is FACTS._GONE
    assert FACTS._attribute(Plain, "limit") == 3
    assert FACTS._attribute(threading, "Thread") is threading.Thread
    assert FACTS._attribute(object(), "x") is FACTS._GONE


class Name(str):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, {"plain": 5}),
        (True, {"plain": True}),
        (1 << 80, {}),
        ("x" * 1000, {"plain": "x" * 400}),
        (b"/a\xff", {"plain": "/a\udcff"}),
    ],
)
def test_plain_values_are_short(value: object, expected: object) -> None:
    assert FACTS._described(value) == expected


def test_other_values_are_only_named(tmp_path: Path) -> None:
    assert "plain" not in FACTS._described(Name("secret"))
    assert FACTS._described([3] * 1000)["numbers"] == [3] * 64
    assert "numbers" not in FACTS._described(["secret"])
    assert FACTS._described(Path("/a/b"))["plain"] == "/a/b"
    with open(tmp_path / "x", "w") as file:
        assert FACTS._described(file)["fd"] == file.fileno()
    assert FACTS._described(file)["fd"] == -1


def test_an_answer_of_many_frames_is_bounded() -> None:
    def deep(left: int) -> bytes:
        return deep(left - 1) if left else FACTS.answer({"asked": {__file__: {"deep:*": ["left"]}}})

    (mine,) = (one for one in process_answers.read(deep(700)).threads if one.ident == threading.get_ident())
    assert mine.depth == 500
    assert len(mine.frames) <= 500


@pytest.mark.parametrize(
    "also_injected", ["__breakranks__ = 1; __import__('time').sleep(600)", "__import__('time').sleep(600)"]
)
def test_a_program_without_threading_into_which_two_threads_were_injected(also_injected: str, tmp_path: Path) -> None:
    # GIVEN a program that has one thread, and in it a thread that was injected and has not ended
    file = tmp_path / "program.py"
    file.write_text(
        textwrap.dedent("""
            import _thread
            import sys
            import time

            def injected(text, **variables):
                _thread.start_new_thread(exec, (text, variables))

            def stand(marker):
                injected(sys.argv[1])
                while len(sys._current_frames()) < 2:
                    time.sleep(0.01)
                injected(
                    "__breakranks__ = 1; answers.append(answer({'asked': {file: {'stand:*': ['marker']}}}))",
                    answers=answers, answer=scope["answer"], file=__file__,
                )
                while not answers:
                    time.sleep(0.01)

            assert "threading" not in sys.modules
            answers = []
            scope = {"__name__": "breakranks_payload"}
            exec(compile(sys.argv[2], "<breakranks>", "exec"), scope)
            stand("weights.part")
            sys.stdout.buffer.write(answers[0])
        """).lstrip()
    )

    # WHEN a second injected thread reads the variables
    command = [sys.executable, "-I", "-S", str(file), also_injected, mailbox.payload("frame_values")]
    done = subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE)

    # THEN it answers for the thread of the program
    assert done.returncode == 0, done
    (thread,) = process_answers.read(done.stdout).threads
    assert [(frame.frame.function, frame.values) for frame in thread.frames] == [
        ("stand", {"marker": {"plain": "weights.part"}})
    ]


@pytest.mark.parametrize(
    "said", [b"", b"[]\n", b"{}\n", b"{'flight': 3, 'error': ''}\nab", b"{'flight': 0, 'error': '', 'threads': [1]}\n",
             b"__import__('os')\n", b"[" * 100_000 + b"\n", b"\xff\n"],
)  # fmt: skip
def test_an_answer_that_is_none(said: bytes) -> None:
    with pytest.raises(ValueError):
        process_answers.read(said)


# --- both together, on real threads ---


class Program:
    """A program in a file of its own, with some of its functions in blocked threads."""

    def __init__(self, folder: Path, text: str) -> None:
        self.file = folder / "program.py"
        self.file.write_text(textwrap.dedent(text).lstrip("\n"))
        os.utime(self.file, (1, 1))
        self.scope: dict[str, Any] = {"threading": threading, "time": time, "os": os, "end": threading.Event()}
        exec(compile(self.file.read_text(), str(self.file), "exec"), self.scope)
        self.threads: dict[str, threading.Thread] = {}

    def start(self, name: str, line: int) -> None:
        """Start a function in a thread, and wait until it is blocked at a line of the program."""

        def state() -> list[tuple[int, int]] | None:
            frames = self.frames(thread)
            there = any(f.f_lineno == line for f in frames if f.f_code.co_filename == str(self.file))
            if not there or not self.asleep(thread):
                return None
            return [(id(f), f.f_lasti) for f in frames]

        def blocked() -> bool:
            seen = state()
            time.sleep(0.02)
            return seen is not None and seen == state()

        thread = threading.Thread(target=self.scope[name], name=name, daemon=True)
        self.threads[name] = thread
        thread.start()
        self.until(blocked)  # it may reach the line, lose the CPU, and block in a deeper frame later

    @staticmethod
    def asleep(thread: threading.Thread) -> bool:
        """Whether the thread neither runs nor waits for a CPU."""
        text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "S"

    @staticmethod
    def frames(thread: threading.Thread) -> list[types.FrameType]:
        return list(FACTS._chain(sys._current_frames().get(thread.ident or 0)))

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def look(self, earlier: Mapping[int, int] = MappingProxyType({})) -> Introspection:
        """Interpret these threads: their stacks, as seen from outside, with the answer of the payload.

        ``earlier``: the lines at which they were sampled, for those that have moved since.
        """
        seen = tuple(
            SeenThread(
                thread.native_id or 0,
                tuple(
                    Frame(f.f_code.co_name, f.f_code.co_filename, earlier.get(f.f_lineno or 0, f.f_lineno or 0))
                    for f in reversed(self.frames(thread))
                ),
            )
            for thread in self.threads.values()
        )
        asked = questions(SourceCache(), os.getpid(), 0.0, seen)
        said = process_answers.read(FACTS.answer({"asked": merged([asked])}))
        return interpret(said, asked, seen, os.getpid())

    def tid(self, name: str) -> int:
        return self.threads[name].native_id or 0


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    made: list[Program] = []

    def make(text: str) -> Program:
        made.append(Program(tmp_path, text))
        return made[-1]

    yield make
    for one in made:
        one.scope["end"].set()
        for lock in one.scope.get("locks", ()):
            if lock.locked():
                lock.release()
        for thread in one.threads.values():
            thread.join(DEADLINE)


def test_the_owner_of_a_lock_stands_inside_its_with(program: Callable[[str], Program]) -> None:
    # GIVEN two locks, each known by an attribute only, and a thread that holds one
    one = program("""
        class Box:
            def __init__(self): self.lock = threading.Lock()
            def hold(self):
                with self.lock:
                    end.wait()
            def want(self):
                for step in range(7, 9):
                    with self.lock:
                        pass
        box, another = Box(), Box()
        hold, want, other = box.hold, box.want, another.hold
    """)
    one.start("other", 5)
    one.start("hold", 5)
    one.start("want", 8)

    # WHEN
    found = one.look()

    # THEN it is that one, and not the other box's
    wait = found.wait_of(one.tid("want"))
    assert wait is not None
    assert (wait.kind, wait.name, wait.owner, wait.proof) == ("Lock", "self.lock", one.tid("hold"), BY_WITH)
    assert (wait.function, wait.line) == ("hold", 4)
    assert [(loop.names, loop.values) for loop in found.loops] == [(("step",), (7,))]


def test_who_called_acquire_is_a_likely_owner(program: Callable[[str], Program]) -> None:
    one = program("""
        lock = threading.Lock()
        def hold():
            lock.acquire()
            end.wait()
            lock.release()
        def want():
            lock.acquire()
            lock.release()
    """)
    one.start("hold", 4)
    one.start("want", 7)
    wait = one.look().wait_of(one.tid("want"))
    assert wait is not None
    assert (wait.owner, wait.proof, wait.line) == (one.tid("hold"), BY_ACQUIRE, 3)


def test_a_lock_that_may_be_taken_again_says_itself_who_has_it(program: Callable[[str], Program]) -> None:
    one = program("""
        lock = threading.RLock()
        def take(): lock.acquire()
        def hold():
            take()
            end.wait()
            lock.release()
        def want():
            with lock: pass
    """)
    one.start("hold", 5)
    one.start("want", 8)
    found = one.look()
    wait = found.wait_of(one.tid("want"))
    assert wait is not None
    assert (wait.kind, wait.owner, wait.proof) == ("RLock", one.tid("hold"), BY_LOCK)
    assert found.wait_of(one.tid("hold")).kind == "Event"  # type: ignore[union-attr]


def test_who_tried_in_vain_is_no_owner(program: Callable[[str], Program]) -> None:
    one = program("""
        lock = threading.RLock()
        def hold():
            lock.acquire()
            end.wait()
            lock.release()
        def tries():
            lock.acquire(False)
            end.wait()
        def want():
            with lock: pass
    """)
    one.start("hold", 4)
    one.start("tries", 8)
    one.start("want", 10)
    wait = one.look().wait_of(one.tid("want"))
    assert wait is not None
    assert (wait.owner, wait.function, wait.proof) == (one.tid("hold"), "hold", BY_LOCK)


def test_who_has_a_lock_that_may_be_taken_again_does_not_wait_for_it(program: Callable[[str], Program]) -> None:
    one = program("""
        lock = threading.RLock()
        here, there = os.pipe()
        def hold():
            with lock: os.read(here, 1)
    """)
    one.start("hold", 4)
    one.until(lambda: "locked" in repr(one.scope["lock"]) and "unlocked" not in repr(one.scope["lock"]))
    try:
        assert one.look().waits == ()
    finally:
        os.write(one.scope["there"], b"x")


def test_two_locks_in_one_with(program: Callable[[str], Program]) -> None:
    one = program("""
        first, second = threading.Lock(), threading.Lock()
        def hold():
            with second:
                end.wait()
        def want():
            with first, second:
                pass
    """)
    one.start("hold", 4)
    one.start("want", 6)
    wait = one.look().wait_of(one.tid("want"))
    assert wait is not None
    assert (wait.name, wait.owner) == ("second", one.tid("hold"))


def test_who_waits_for_a_condition_has_let_go_of_its_lock(program: Callable[[str], Program]) -> None:
    one = program("""
        condition = threading.Condition(threading.Lock())
        def sleeper():
            with condition:
                condition.wait(30)
        def hold():
            with condition:
                end.wait()
                condition.notify_all()
        def want():
            with condition:
                pass
    """)
    one.start("sleeper", 4)
    one.start("hold", 7)
    one.start("want", 10)
    found = one.look()
    wait = found.wait_of(one.tid("want"))
    assert wait is not None
    assert (wait.kind, wait.name, wait.owner) == ("Condition", "condition", one.tid("hold"))
    assert wait.proof == BY_WITH  # of the two threads inside the with, only one holds it
    assert found.wait_of(one.tid("sleeper")).owner == 0  # type: ignore[union-attr]


def test_a_queue_a_thread_and_a_future(program: Callable[[str], Program]) -> None:
    one = program("""
        import queue
        from concurrent.futures import ThreadPoolExecutor
        class Feed:
            def __init__(self):
                self.items = queue.Queue(4)
                self.dead = threading.Thread(target=int, name="feeder")
                self.dead.start()
                self.dead.join()
            def get(self):
                self.items.get()
        feed = Feed()
        get = feed.get
        def job(): end.wait()
        worker = threading.Thread(target=job, name="a worker")
        worker.start()
        def join():
            worker.join()
        pool = ThreadPoolExecutor(1)
        work = pool.submit(job)
        def result():
            work.result()
        def free():
            end.wait()
            feed.items.put(1)
    """)
    for name, line in (("get", 10), ("join", 17), ("result", 21), ("free", 23)):
        one.start(name, line)
    found = one.look()
    got, joined, awaited = (found.wait_of(one.tid(name)) for name in ("get", "join", "result"))
    assert got is not None and joined is not None and awaited is not None
    assert (got.kind, got.name, got.state, got.ended) == ("Queue", "self.items", "empty", ("feeder",))
    assert (joined.kind, joined.name, joined.owner) == ("Thread", "a worker", one.scope["worker"].native_id)
    assert (awaited.kind, awaited.name) == ("Future", "work")


def test_the_file_that_a_loop_waits_for(program: Callable[[str], Program], tmp_path: Path) -> None:
    marker = tmp_path / "building"
    marker.touch()
    one = program(f"""
        class Build:
            def __init__(self, path): self.path = path
            def wait(self):
                while os.path.exists(self.path):
                    time.sleep(0.01)
        wait = Build({str(marker)!r}).wait
    """)
    one.start("wait", 5)
    for earlier in ({}, {5: 4}):  # a loop that polls is at another line each time
        (polled,) = one.look(earlier).polled
        assert (polled.path, polled.kind) == (str(marker), "own")
    marker.unlink()


def test_a_loop_that_tests_a_lock_file_and_creates_it(program: Callable[[str], Program], tmp_path: Path) -> None:
    lock = tmp_path / "build.lock"
    lock.touch()
    one = program(f"""
        def wait(path):
            while True:
                if os.path.exists(path):
                    time.sleep(0.01)
                    continue
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                break
        wait = __import__("functools").partial(wait, {str(lock)!r})
    """)
    one.start("wait", 4)
    (polled,) = one.look().polled
    assert (polled.path, polled.kind, polled.sure) == (str(lock), "own", True)
    lock.unlink()


def test_threads_that_have_gone_on_say_nothing_of_where_they_were(program: Callable[[str], Program]) -> None:
    one = program("""
        def stand():
            for step in (3,):
                work = end
                end.wait()
    """)
    one.start("stand", 4)
    assert one.look().loops != ()
    assert one.look({4: 3}).loops == ()


def test_a_thread_without_a_number_is_left_out(program: Callable[[str], Program]) -> None:
    one = program("def stand(): end.wait()")
    one.start("stand", 1)
    one.threads["stand"]._native_id = object()  # type: ignore[attr-defined]
    said = process_answers.read(FACTS.answer({"asked": {}}))
    assert one.threads["stand"].ident not in {thread.ident for thread in said.threads}


def test_a_source_that_is_newer_than_its_process_is_not_believed(program: Callable[[str], Program]) -> None:
    one = program("""
        def stand():
            for step in (3,):
                end.wait()
    """)
    one.start("stand", 3)
    frame = Frame("stand", str(one.file), 3)
    started = time.time() - 100
    assert SourceCache().line(os.getpid(), started, frame).loops == ()  # it was made just now
    assert SourceCache().line(os.getpid(), time.time() + 10, frame).loops == ("step",)


def test_sources_that_are_missing_or_huge(tmp_path: Path) -> None:
    huge = tmp_path / "huge.py"
    huge.write_text("with lock:\n    pass\n" + "#" * (2 << 20))
    for file in (str(huge), "/nowhere/x.py", "<string>", "<frozen x>", "", "relative.py", "\0.py"):
        assert SourceCache().line(os.getpid(), 0.0, Frame("<module>", file, 1)) == source_analysis.NOTHING


def test_whether_it_is_worth_to_get_inside(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "with lock:\n    compute()\nwhile os.path.exists(p):\n    time.sleep(1)\n" + "\n" * 50 + "sleep(9)\n"
    )
    pid = os.getpid()
    own = Frame("main", str(file), 2)
    assert may_wait(pid, (Frame("main", str(file), 1),))
    assert may_wait(pid, (Frame("main", str(file), 4),))
    assert not may_wait(pid, (own,))
    assert not may_wait(pid, (Frame("main", str(file), 55),))
    assert not may_wait(pid, (own, Frame("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 3)))
    assert may_wait(pid, (own, Frame("wait", "/usr/lib/python3.11/threading.py", 3)))
    loader = Frame("_get_data", "/x/site-packages/torch/utils/data/dataloader.py", 3)
    assert may_wait(pid, (own, loader, Frame("select", "/usr/lib/python3.11/selectors.py", 3)))
    assert not may_wait(pid, ())
