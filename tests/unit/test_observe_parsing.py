"""Parsing the output of the kernel, py-spy and pystack."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from breakranks.observe import kernel_locks, native_frames, pyspy_parse, syscalls
from breakranks.snapshot.model import Frame


def test_a_running_thread_is_in_no_call() -> None:
    assert syscalls.parse("running", syscalls.table_for("x86_64")) is None


def test_a_call_is_named_and_its_arguments_read() -> None:
    line = "202 0x5607680f8570 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc1c730b00 0x7f91e06a3f16"
    assert syscalls.parse(line, syscalls.table_for("x86_64")) == ("futex", (0x5607680F8570, 0x189, 0, 0, 0, 0xFFFFFFFF))


@given(st.text())
def test_no_syscall_line_is_too_strange(text: str) -> None:
    syscalls.parse(text, syscalls.table_for("x86_64"))


def test_waiters_of_a_lock_are_told_from_its_holder() -> None:
    text = "1: FLOCK  ADVISORY  WRITE 42 08:01:131 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 43 08:01:131 0 EOF\n"
    assert [(lock.pid, lock.waits) for lock in kernel_locks.parse(text)] == [(42, False), (43, True)]


def test_a_method_is_known_by_its_plain_name() -> None:
    assert pyspy_parse.plain_name("Trainer.fit.<locals>.step") == "step"
    assert pyspy_parse.plain_name("main.<locals>.<lambda>") == "<lambda>"


def test_native_and_python_frames_merge_in_order() -> None:
    def c(name: str) -> Frame:
        return Frame(name, "lib.so", 0, True)

    def p(name: str) -> Frame:
        return Frame(name, "a.py", 1)

    loop = c("_PyEval_EvalFrameDefault")
    merged = native_frames.merge(
        [c("_start"), loop, c("engine"), loop, c("futex_wait")],
        [p("<module>"), p("train"), p("hook")],
        [True, False, True],
    )
    assert [frame.function for frame in merged] == ["<module>", "train", "engine", "hook", "futex_wait"]


def test_a_symbol_loses_its_arguments_only() -> None:
    assert native_frames.short_symbol("c10d::Work::wait(std::chrono::duration<long>)") == "c10d::Work::wait"
    assert (
        native_frames.short_symbol("gloo::(anonymous namespace)::ring(gloo::Opts const&)")
        == "gloo::(anonymous namespace)::ring"
    )
    assert native_frames.short_symbol("f<int (*)(char)>(long)") == "f<int (*)(char)>"
