"""The exact output: each view of one literal job, with a fixed clock and width."""

from __future__ import annotations

import fcntl
import io
import json as stdlib_json
import os
import pty
import select
import shlex
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.cli import job_selection, main
from breakranks.errors import UsageError
from breakranks.explain.actions import RunBreakranks
from breakranks.explain.causes import Cause
from breakranks.explain.causes.collective_causes import NotEntered, RankExited, RanksAt
from breakranks.explain.causes.file_causes import BytesMoved
from breakranks.explain.causes.process_causes import Spinning
from breakranks.explain.diagnosis import Diagnosis, Finding, RankClass
from breakranks.explain.finding_parts import CallName, Doing, HeldUp, Subject, Where
from breakranks.jobs.rank_selection import selected_ranks
from breakranks.rankset import RankSet
from breakranks.show import json_output as show_json
from breakranks.show.ps_lines import ps_lines
from breakranks.show.quantities import amount, duration
from breakranks.show.stack_tree import function_name, stacks_lines
from breakranks.show.terminal_text import (
    TerminalStyle,
    clean,
    columns,
    command_text,
    render,
    short_path,
    text_of,
    wants_color,
    wrap,
)
from breakranks.show.top_view import ended, frame_lines, watch
from breakranks.show.verdict_lines import why_lines
from breakranks.snapshot.model import (
    Frame,
    Host,
    Job,
    Missing,
    Problem,
    Process,
    Rank,
    Sample,
    Snapshot,
    StackTable,
    Thread,
)
from breakranks.snapshot.snapshot_file import save
from support.processes import defaults_for_signals
from support.values import replace

SITE = "/venv/lib/python3.11/site-packages"
LOOK = TerminalStyle(now=1000.0, folder="/home/me/run", home="/home/me")

BASE = (
    Frame("_run_code", "<frozen runpy>", 88),
    Frame("<module>", "/home/me/run/train.py", 30),
    Frame("main", "/home/me/run/train.py", 22),
)
REDUCE = (
    *BASE,
    Frame("step", "/home/me/run/train.py", 12),
    Frame("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 81),
    Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3000),
)
LOAD = (*BASE, Frame("step", "/home/me/run/train.py", 11), Frame("load_batch", "/home/me/data.py", 88))
PIN = (
    Frame("_bootstrap", "/usr/lib/python3.11/threading.py", 995),
    Frame("wait", "/usr/lib/python3.11/threading.py", 327),
)
GLOO = Frame("gloo::Buffer::wait(std::vector<int> const&)", "/x/libtorch_cpu.so", 0, True)


def job() -> Snapshot:
    """Four of six ranks: 2 loads data; 0, 1 and 3 wait for it; 4 cannot be read; 5 has exited."""
    table = StackTable()
    ranks = []
    for rank in range(5):
        stack = LOAD if rank == 2 else REDUCE
        threads = (
            Thread(
                tid=1, name="MainThread", stack=table.add(stack), native=table.add((*stack, GLOO)), state="S", idle=94.0
            ),
            Thread(tid=2, name="pin", stack=table.add(PIN)),
        )
        blind = rank == 4
        ranks.append(
            Rank(
                rank=rank,
                host="n1",
                process=Process(
                    pid=100 + rank,
                    parent=7,
                    command=("/usr/bin/python", "train.py"),
                    state="D" if rank == 2 else "S",
                    started=900.0 - rank,
                    rss=(1 << 30) + rank * (100 << 20),
                    cpu_percent=99.6 if rank == 2 else 0.2,
                    samples=(Sample(time=1000.0, state="S", threads=() if blind else threads),),
                    problems=(Problem("ptrace is refused", "sysctl kernel.yama.ptrace_scope=0"),) if blind else (),
                    children=(Process(pid=200, parent=100, command=("worker",), name="pt_data_worker"),) * 2
                    if rank == 2
                    else (),
                ),
            )
        )
    return Snapshot(
        version=1,
        made_by="breakranks test",
        time=1000.0,
        job=Job(
            key="torchrun-29500",
            launcher="torchrun",
            world_size=6,
            started=900.0,
            command=("/usr/bin/torchrun", "/home/me/run/train.py"),
            ids={},
            launcher_pid=7,
        ),
        ranks=tuple(ranks),
        frames=tuple(table.frames),
        stacks=tuple(table.stacks),
        hosts=(Host(name="n1"),),
        missing=(Missing(ranks="5", reason="exited", detail="its launcher is here and it is not"),),
    )


def diagnosis() -> Diagnosis:
    place = Where("load_batch", "/home/me/data.py", 88)
    reading = Doing(word="io", op="read", about="/mnt/shard-7", verb="reading", where=place, stands=94.0)
    verdict = Finding(
        kind="missing-from-collective",
        culprits="2",
        victims="0-1,3",
        confidence="likely",
        cause=NotEntered(verb="entered", call=CallName(operation="all_reduce"), doing=reading),
        subject=Subject(ranks="2", host="n1", pid=102),
        held_up=HeldUp(ranks="0-1,3"),
        where=place,
        evidence=(RanksAt(ranks="2", doing=reading), BytesMoved(count=0, seconds=94.0)),
        next=(RunBreakranks(command="stacks", args=("--rank", "2", "--native")),),
        grounds=("stands",),
    )
    also = Finding(
        kind="rank-exited",
        culprits="5",
        victims="",
        confidence="certain",
        cause=RankExited(),
        subject=Subject(ranks="5"),
    )
    return Diagnosis(
        verdict=verdict,
        findings=(verdict, also),
        classes=(
            RankClass(
                ranks="0-1,3",
                doing=Doing(word="collective", op="all_reduce"),
                frames=REDUCE,
                state="S",
                moving=False,
                idle=94.0,
            ),
            RankClass(ranks="2", doing=reading, frames=LOAD, state="D", moving=True),
        ),
    )


def stacks(**options: bool) -> str:
    return render(stacks_lines(job(), LOOK, **options), LOOK)


def test_the_tree() -> None:
    assert (
        stacks()
        == """\
job torchrun-29500 · torchrun · 5 of 6 ranks · up 100 s

[0-3] (4)
│ <module>                              train.py:30
│ main                                  train.py:22
├─ [0-1,3] (3)
│    step                               train.py:12
│    all_reduce                         torch/distributed/distributed_c10d.py:3000
└─ [2] (1)
     step                               train.py:11
     load_batch                         ~/data.py:88

[4] (1) no Python stack: ptrace is refused
    sysctl kernel.yama.ptrace_scope=0
[5] (1) missing, exited: its launcher is here and it is not
"""
    )


def test_the_tree_of_chosen_ranks_says_nothing_of_the_others() -> None:
    text = render(stacks_lines(job(), LOOK, ranks=RankSet([2])), LOOK)
    assert "[2] (1)" in text and "load_batch" in text
    assert "all_reduce" not in text and "[4]" not in text and "missing" not in text
    assert "[5] (1) missing" in render(stacks_lines(job(), LOOK, ranks=RankSet([5])), LOOK)


def test_threads_by_name() -> None:
    text = stacks(threads=True)
    assert "main thread\n[0-3] (4)\n" in text
    assert "pin\n[0-3] (4)\n  wait                                  threading.py:327\n" in text


def test_native_frames_without_their_arguments() -> None:
    assert "│    gloo::Buffer::wait                 libtorch_cpu.so\n" in stacks(native=True)
    assert "gloo" not in stacks()


def test_flat_is_one_block_a_class_innermost_first() -> None:
    assert stacks(flat=True).split("\n\n")[1:3] == [
        """\
[0-1,3] (3)
    all_reduce                          torch/distributed/distributed_c10d.py:3000
    step                                train.py:12
    main                                train.py:22
    <module>                            train.py:30""",
        """\
[2] (1)  pid 102, sleeping, idle 94 s
    load_batch                          ~/data.py:88
    step                                train.py:11
    main                                train.py:22
    <module>                            train.py:30""",
    ]
    assert "[0-3] (4) pin\n    wait " in stacks(flat=True, threads=True)


def test_full_cuts_no_frame_and_no_path() -> None:
    full = replace(LOOK, full=True)
    text = render(stacks_lines(job(), full), full)
    assert "_run_code" in text and "wrapper" in text
    assert f"{SITE}/torch/distributed/distributed_c10d.py:3000" in text


def test_a_narrow_terminal_keeps_the_end_of_paths() -> None:
    narrow = replace(LOOK, width=44)
    lines = render(stacks_lines(job(), narrow), narrow).splitlines()
    assert max(map(len, lines)) <= 44
    assert "│    all_reduce  …d/distributed_c10d.py:3000" in lines


def test_a_narrow_terminal_cuts_no_command() -> None:
    narrow = replace(LOOK, width=30)
    assert "breakranks stacks --rank 2 --native" in render(why_lines(job(), diagnosis(), narrow), narrow)


def test_one_rank_of_several_is_one_of_several_ranks() -> None:
    one = replace(job(), ranks=job().ranks[:1])
    assert "1 of 6 ranks" in render(stacks_lines(one, LOOK), LOOK)


def test_ranks_that_stand_above_a_parting() -> None:
    table = StackTable()
    a, b, c = (Frame(name, "/home/me/run/x.py", 1) for name in "abc")
    ranks = [
        Rank(
            rank=n,
            host="n1",
            process=Process(
                pid=n,
                parent=0,
                command=(),
                samples=(Sample(time=1.0, state="S", threads=(Thread(tid=n, name="m", stack=table.add(s)),)),),
            ),
        )
        for n, s in enumerate([(a,), (a, b), (a, c)])
    ]
    snapshot = replace(job(), ranks=tuple(ranks), frames=tuple(table.frames), stacks=tuple(table.stacks), missing=())
    assert render(stacks_lines(snapshot, LOOK), LOOK).splitlines()[2:] == [
        "[0-2] (3)",
        "│ a                                     x.py:1",
        "├─ [0] (1) is here",
        "├─ [1] (1)",
        "│    b                                  x.py:1",
        "└─ [2] (1)",
        "     c                                  x.py:1",
        "",
    ]


def test_a_screenful_of_ranks_is_shortened() -> None:
    scattered = RankSet(range(0, 10_000, 2))
    snapshot = replace(job(), missing=(Missing(ranks=str(scattered), reason="exited"),))
    line = render(stacks_lines(snapshot, LOOK), LOOK).splitlines()[-1]
    assert line.endswith(",…] (5,000) missing, exited") and len(line) < 100


def test_ps() -> None:
    assert (
        render(ps_lines([job()], LOOK), LOOK)
        == """\
job torchrun-29500 · torchrun · 5 of 6 ranks here · started 100 s ago
  torchrun train.py
  rank  pid  state             cpu   memory    age  helpers
     0  100  sleeping           0%  1.0 GiB  100 s
     1  101  sleeping           0%  1.1 GiB  101 s
     2  102  uninterruptible  100%  1.2 GiB  102 s  2 pt_data_worker
     3  103  sleeping           0%  1.3 GiB  103 s
     4  104  sleeping           0%  1.4 GiB  104 s
  [5] (1) missing, exited: its launcher is here and it is not
  [4] ptrace is refused
      sysctl kernel.yama.ptrace_scope=0
"""
    )


def test_ps_folds_many_ranks_and_full_does_not() -> None:
    process = job().ranks[0].process
    many = replace(
        job(),
        ranks=tuple(
            Rank(rank=n, host=f"n{n % 2}", process=replace(process, pid=n, cpu_percent=float(n % 3))) for n in range(64)
        ),
        missing=(),
    )
    lines = render(ps_lines([many], LOOK), LOOK).splitlines()
    assert len(lines) == 5
    assert " ".join(lines[3].split()) == (
        "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,… (32) n0 sleeping 0% - 2% 1.0 GiB 100 s"
    )
    full = replace(LOOK, full=True)
    assert len(render(ps_lines([many], full), full).splitlines()) == 67


def test_ps_of_several_jobs_and_the_machines_problems() -> None:
    text = render(ps_lines([job(), job()], LOOK, problems=(Problem("pid 9 is closed", "sudo"),)), LOOK)
    assert text.count("job torchrun-29500") == 2
    assert text.endswith("\n\nnot seen: pid 9 is closed\n    sudo\n")


def test_why() -> None:
    assert (
        render(why_lines(job(), diagnosis(), LOOK), LOOK)
        == """\
job torchrun-29500 · torchrun · 5 of 6 ranks · up 100 s

rank 2 (n1, pid 102) has not entered all_reduce; ranks 0-1,3 wait for it.
It is in load_batch, data.py:88, reading /mnt/shard-7 (for 94 s).
  victims  0-1,3   in all_reduce   train.py:12 in step
  proof    rank 2 is in load_batch, data.py:88, reading /mnt/shard-7 (for 94 s)
           no bytes moved in 94 s
  sure     likely: it does not move, and the others wait
  next     breakranks stacks --rank 2 --native

  also     rank 5 has exited, and the launcher is still running (certain)

  ranks       state                            doing                 where
  0-1,3  (3)  sleeping         unchanged 94 s  in all_reduce         train.py:12 in step
  2      (1)  uninterruptible  moving          reading /mnt/shard-7  ~/data.py:88 in load_batch
  [4] (1) no Python stack: ptrace is refused
      sysctl kernel.yama.ptrace_scope=0
  [5] (1) missing, exited: its launcher is here and it is not
"""
    )


def test_why_without_a_verdict_says_so() -> None:
    moving = replace(diagnosis(), verdict=None, findings=())
    assert "No problem was found. 1 of 4 ranks moved" in render(why_lines(job(), moving, LOOK), LOOK)
    still = replace(moving, classes=moving.classes[:1], settled=False)
    text = render(why_lines(job(), still, LOOK), LOOK)
    assert "No verdict: the evidence does not show why the job is blocked." in text
    assert "A longer inspection (--patience 60) may show more." in text
    puzzled = replace(moving, findings=diagnosis().findings)
    assert "No verdict: none of the findings explains the state of the job." in render(
        why_lines(job(), puzzled, LOOK), LOOK
    )


@pytest.mark.parametrize(
    ("ranks", "cause", "line"),
    [
        ("2", RankExited(), "It is in load_batch, ~/data.py:88."),
        ("2-3", RankExited(), "One of them is in load_batch, ~/data.py:88."),
        ("2", Spinning(where=Where("load_batch", "/home/me/data.py", 88)), ""),
        ("2", Spinning(where=Where("poll", "/home/me/data.py", 8)), "It is in load_batch, ~/data.py:88."),
    ],
)
def test_a_place_that_the_sentence_does_not_name_has_a_line(ranks: str, cause: Cause, line: str) -> None:
    verdict = replace(diagnosis().findings[1], cause=cause, subject=Subject(ranks=ranks))
    verdict = replace(verdict, where=Where("load_batch", "/home/me/data.py", 88))
    text = render(why_lines(job(), replace(diagnosis(), verdict=verdict), LOOK), LOOK)
    assert [shown for shown in text.splitlines() if shown.endswith("data.py:88.")] == ([line] if line else [])


def test_why_json_is_the_contract() -> None:
    made = stdlib_json.loads(show_json.to_text(show_json.why_json(job(), diagnosis())))
    assert made["schema"] == 1
    assert {key: made["job"][key] for key in ("launcher", "world_size", "hosts", "ranks", "unseen")} == {
        "launcher": "torchrun",
        "world_size": 6,
        "hosts": "n1",
        "ranks": "0-4",
        "unseen": "5",
    }
    contract = {"kind", "culprits", "victims", "confidence", "summary", "where", "evidence", "next"}
    assert contract <= set(made["verdict"])
    assert made["verdict"]["where"] == {"function": "load_batch", "file": "/home/me/data.py", "line": 88}
    assert [finding["kind"] for finding in made["findings"]] == ["missing-from-collective", "rank-exited"]
    assert made["findings"][0] == made["verdict"]
    assert made["findings"][1]["where"] is None
    assert made["classes"][0]["ranks"] == "0-1,3" and made["classes"][0]["activity"] == "collective"
    assert made["classes"][0]["frames"][-1] == {
        "function": "all_reduce",
        "file": f"{SITE}/torch/distributed/distributed_c10d.py",
        "line": 3000,
    }
    quiet = replace(diagnosis(), verdict=None, findings=())
    empty = stdlib_json.loads(show_json.to_text(show_json.why_json(job(), quiet)))
    assert empty["verdict"] is None and empty["findings"] == []


def test_stacks_and_ps_json() -> None:
    made = stdlib_json.loads(show_json.to_text(show_json.stacks_json(job(), threads=True, native=True)))
    assert [one["ranks"] for one in made["classes"]] == ["0-1,3", "2", "4"]
    assert made["classes"][0]["frames"][-1]["native"] is True
    assert {(one["rank"], one["name"]) for one in made["threads"]} == {
        (rank, name) for rank in range(4) for name in ("MainThread", "pin")
    }
    listed = stdlib_json.loads(show_json.to_text(show_json.ps_json([job()], RankSet([2]))))
    (process,) = listed["jobs"][0]["processes"]
    assert process["pid"] == 102 and len(process["helpers"]) == 2
    bad = {"name": os.fsdecode(b"caf\xe9")}
    assert stdlib_json.loads(show_json.to_text(dict(bad))) == {"name": "caf?"}


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n1"], "n1"),
        (["gpu-a", "gpu-b"], "gpu-a,gpu-b"),
        (["n01", "n02"], "n[01-02]"),
        (["b2", "a1", "b1"], "a1,b[1-2]"),
        (["10.0.0.1"], "10.0.0.1"),
        ([], ""),
    ],
)
def test_hosts_are_folded(names: list[str], folded: str) -> None:
    assert show_json.fold_hosts(names) == folded


def test_a_live_frame() -> None:
    assert (
        render(frame_lines(job(), diagnosis(), LOOK, footer="q quits"), LOOK)
        == """\
job torchrun-29500 · torchrun · 5 of 6 ranks · up 100 s
rank 2 (n1, pid 102) has not entered all_reduce; ranks 0-1,3 wait for it. It is in load_batch, data.py:88, reading \
/mnt/shard-7 (for 94 s) (likely)

  ranks        cpu  motion          state            doing                 where
  0-1,3  (3)    0%  unchanged 94 s  sleeping         in all_reduce         train.py:12 in step
  2      (1)  100%  moving          uninterruptible  reading /mnt/shard-7  ~/data.py:88 in load_batch
  [4] (1) no Python stack: ptrace is refused
      sysctl kernel.yama.ptrace_scope=0
  [5] (1) missing, exited: its launcher is here and it is not

q quits
"""
    )


def test_a_live_frame_fits_the_window() -> None:
    look = replace(LOOK, width=60)
    for height in range(3, 14):
        lines = render(frame_lines(job(), diagnosis(), look, height=height, footer="q"), look).splitlines()
        assert len(lines) <= height and max(map(len, lines)) <= 60
    assert any(
        "more lines" in line for line in render(frame_lines(job(), diagnosis(), look, height=8), look).splitlines()
    )


def ticking() -> Callable[[], float]:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    return clock


def test_without_a_terminal_frames_are_printed_until_the_job_ends() -> None:
    gone = replace(
        job(),
        ranks=tuple(replace(r, process=replace(r.process, state="X")) for r in job().ranks),
    )
    looks = iter([(job(), diagnosis()), (job(), diagnosis()), (gone, diagnosis())])
    slept: list[float] = []
    out = io.StringIO()
    last = watch(lambda: next(looks), stream=out, look=lambda: LOOK, interval=2.0, clock=ticking(), sleep=slept.append)
    assert last == diagnosis()
    assert out.getvalue().count("job torchrun-29500") == 3
    assert out.getvalue().endswith("the job has ended\n")
    assert slept == [1.5, 1.5]
    assert ended(gone) and not ended(job())
    # A launcher that has started no rank yet.
    launcher = job().ranks[0].process
    starting = replace(gone, ranks=(), launcher=launcher)
    assert not ended(starting) and ended(replace(starting, launcher=None))
    assert ended(replace(starting, launcher=replace(launcher, state="Z")))


def test_once_is_one_frame() -> None:
    out = io.StringIO()
    quiet = replace(diagnosis(), verdict=None, findings=())
    assert watch(lambda: (job(), quiet), stream=out, look=lambda: LOOK, interval=2.0, once=True) == quiet
    assert out.getvalue() == render(frame_lines(job(), quiet, LOOK), LOOK)


LIVE = """
import sys, termios
sys.path.insert(0, {tests!r})
from unit.test_terminal_output import LOOK, diagnosis, job
from breakranks.show.top_view import watch
before = termios.tcgetattr(0)
try:
    watch(lambda: (job(), diagnosis()), stream=sys.stdout, look=lambda: LOOK, interval=5.0)
finally:
    print("RESTORED" if termios.tcgetattr(0) == before else "BROKEN", flush=True)
"""


def take_terminal() -> None:
    """Run in a new process with its own terminal. Ctrl-C ends it, whatever the test runner ignores."""
    defaults_for_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("leave", ["q", "ctrl-c", "SIGTERM", "SIGHUP"])
def test_the_terminal_is_given_back(leave: str) -> None:
    # GIVEN the live view on a real pseudo-terminal
    parent, child = pty.openpty()
    code = LIVE.format(tests=str(Path(__file__).parents[1]))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        preexec_fn=take_terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(child)
    try:
        seen = read_until(parent, b"q quits")
        assert b"\x1b[?1049h" in seen and b"load_batch" in seen
        # WHEN the user leaves
        if leave in ("q", "ctrl-c"):
            os.write(parent, b"q" if leave == "q" else b"\x03")
        else:
            import signal

            process.send_signal(getattr(signal, leave))
        # THEN the screen and the terminal's modes are as they were
        rest = read_until(parent, b"RESTORED")
        assert b"\x1b[?1049l" in rest and b"\x1b[?25h" in rest
        process.wait(90)
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def read_until(handle: int, mark: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + 90
    while mark not in seen:
        ready, _, _ = select.select([handle], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"waited for {mark!r}, saw {seen!r}"
        try:
            seen += os.read(handle, 65536)
        except OSError:
            raise AssertionError(f"it ended without {mark!r}: {seen!r}") from None
    return seen


def test_only_our_own_escapes_reach_a_terminal() -> None:
    evil = Frame("\x1b[2Jpwn\nd\u202e", "/home/me/run/\x07bell.py", 1)
    table = StackTable()
    row = table.add((evil,))
    process = Process(
        pid=1,
        parent=0,
        command=("\x1b]0;x\x07",),
        name="\x9b31m",
        samples=(Sample(time=1.0, state="S", threads=(Thread(tid=1, name="\x1bT", stack=row),)),),
    )
    hostile = replace(
        job(),
        job=Job(key="k\x1b[H", launcher="l\r", world_size=1, started=0.0, command=("a\x1b[A",)),
        ranks=(Rank(rank=0, host="h\x1b", process=process),),
        frames=tuple(table.frames),
        stacks=tuple(table.stacks),
        missing=(Missing(ranks="7", reason="exited", detail="\x1b[1m"),),
    )
    look = replace(LOOK, color=True)
    for lines in (
        stacks_lines(hostile, look, threads=True),
        stacks_lines(hostile, look, flat=True),
        ps_lines([hostile], look),
        frame_lines(hostile, diagnosis(), look),
        why_lines(hostile, diagnosis(), look),
    ):
        text = render(lines, look)
        for escape in text.split("\x1b")[1:]:
            assert escape.startswith("[") and escape[1:].split("m")[0].replace(";", "").isdigit()
        assert not set("\r\x07\x9b\u202e") & set(text)


@given(st.text(max_size=40))
def test_clean_is_printable_and_keeps_length(text: str) -> None:
    assert clean(text).isprintable() and len(clean(text)) == len(text)


@pytest.mark.parametrize(
    ("asked", "tty", "environ", "color"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", False, {"FORCE_COLOR": "1"}, True),
        ("auto", False, {"FORCE_COLOR": "0"}, False),
        ("auto", True, {"TERM": "dumb"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {"FORCE_COLOR": "1"}, False),
    ],
)
def test_who_wants_color(asked: str, tty: bool, environ: dict[str, str], color: bool) -> None:
    assert wants_color(asked, tty, environ) is color


def test_color_marks_the_frame_to_open_first() -> None:
    look = replace(LOOK, color=True)
    text = render(stacks_lines(job(), look), look)
    assert "\x1b[1;33mload_batch\x1b[0m" in text
    assert "\x1b[36m[0-1,3]\x1b[0m" in text
    assert "\x1b" not in stacks()


def test_a_terminal_without_unicode() -> None:
    look = replace(LOOK, unicode=False, width=44)
    text = render(stacks_lines(job(), look), look)
    assert text.isascii() and "|- [0-1,3] (3)" in text


@pytest.mark.parametrize(
    ("path", "short"),
    [
        (f"{SITE}/torch/nn/linear.py", "torch/nn/linear.py"),
        ("/usr/lib/python3/dist-packages/yaml/x.py", "yaml/x.py"),
        ("/usr/lib/python3.13t/threading.py", "threading.py"),
        ("/home/me/run/train.py", "train.py"),
        ("/home/me/data.py", "~/data.py"),
        ("/home/me/running/data.py", "~/running/data.py"),
        ("/mnt/x.py", "/mnt/x.py"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("train.py", "train.py"),
        ("", ""),
    ],
)
def test_paths_are_shortened_as_people_say_them(path: str, short: str) -> None:
    assert short_path(path, LOOK) == short
    assert short_path(path, replace(LOOK, full=True)) == path


def test_words_for_numbers() -> None:
    times = (0.44, 94.0, 119.6, 185.0, 700.0, 3600.0, 18_600.0, 90_000.0, None, -1.0)
    assert [duration(t) for t in times] == [
        "0.4 s", "94 s", "120 s", "3 min 5 s", "11 min", "1 h", "5 h 10 min", "1 d 1 h", "?", "?",
    ]  # fmt: skip
    assert [amount(n) for n in (0, 1023, 1536, 220 << 20, 5 << 40, 1 << 60)] == [
        "0 B", "1023 B", "1.5 KiB", "220 MiB", "5.0 TiB", "1048576 TiB",
    ]  # fmt: skip
    command = ("/usr/bin/python", f"{SITE}/x.py", "a b", "")
    assert command_text(command, LOOK) == "x.py 'a b' ''"
    assert command_text(command, replace(LOOK, full=True)) == f"/usr/bin/python {SITE}/x.py 'a b' ''"
    assert len(command_text(("x" * 300,), LOOK)) == 100


@given(st.text(alphabet="ab ", max_size=60), st.integers(1, 20))
def test_wrapping_loses_no_word(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width or " " not in line for line in lines)


def test_columns_line_up() -> None:
    lines = columns([["a", "1", "x"], [("bbb", "dim"), "22", "a/very/long/path.py"]], right=(1,), width=22)
    assert [text_of(line) for line in lines] == ["  a     1  x", "  bbb  22  …ng/path.py"]


def test_names_of_native_functions() -> None:
    def name(function: str) -> str:
        return function_name(Frame(function, "x.so", 0, True), LOOK)

    assert name("void a::f<int>(std::vector<int> const&)") == "a::f"
    assert name("poll") == "poll"
    assert name("operator()") == "operator"
    assert name("(anonymous namespace)::g(int)") == "::g"
    assert function_name(Frame("<module>", "x.py", 1), LOOK) == "<module>"


# --- the command line ---------------------------------------------------------------------------------


def run_main(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main.main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_answers_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "hang.brk")
    save(job(), path)
    status, out, _ = run_main("stacks", path, capsys=capsys)
    assert status == 0 and "└─ [2] (1)" in out
    status, out, _ = run_main("ps", path, "--json", capsys=capsys)
    assert status == 0 and stdlib_json.loads(out)["jobs"][0]["ranks"] == "0-4"
    status, out, err = run_main("stacks", path, "--rank", "99", capsys=capsys)
    assert (status, out) == (2, "")
    assert err == "breakranks: rank 99 is not in this job\n  The job has ranks 0-4. Missing: 5.\n"
    status, _, err = run_main("stacks", path, "--job", "other", capsys=capsys)
    assert status == 2 and "not of job 'other'" in err
    status, _, err = run_main("snapshot", path, capsys=capsys)
    assert status == 2 and "already a snapshot" in err


def test_a_broken_file_is_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.brk"
    path.write_bytes(b"")
    for command in ("stacks", "ps", "top"):
        status, out, err = run_main(command, str(path), capsys=capsys)
        assert (status, out) == (2, "")
        assert err.startswith(f"breakranks: {path} is empty\n  ")


def test_no_stack_at_all_is_could_not_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blind = replace(job(), ranks=job().ranks[4:], stacks=((),), frames=())
    save(blind, str(tmp_path / "x.brk"))
    status, out, _ = run_main("stacks", str(tmp_path / "x.brk"), capsys=capsys)
    assert status == 2 and "ptrace is refused" in out


def test_help_names_every_command_and_each_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run_main("--help", capsys=capsys)
    assert status == 0 and all(f"\n  {name} " in out for name in main.COMMANDS)
    assert run_main(capsys=capsys)[0] == 2
    for name in ("ps", "stacks", "snapshot", "top"):
        with pytest.raises(SystemExit) as left:
            main.main([name, "--help"])
        assert left.value.code == 0
        assert f"examples:\n  breakranks {name}" in capsys.readouterr().out


def test_mistakes_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("sacks", capsys=capsys) == (
        2,
        "",
        "breakranks: unknown command 'sacks'\n  Did you mean: breakranks stacks\n",
    )
    status, _, err = run_main("top", "--interval", "-1", capsys=capsys)
    assert status == 2 and "--interval" in err
    status, _, err = run_main("stacks", "nowhere", capsys=capsys)
    assert status == 2 and err.count("\n") >= 2


def test_the_unexpected_is_one_line_and_debug_shows_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("\x1b[31mhello")

    monkeypatch.setattr(job_selection, "backend_of", broken)
    monkeypatch.delenv("BREAKRANKS_DEBUG", raising=False)
    status, _, err = run_main("stacks", capsys=capsys)
    assert status == 2
    assert err.startswith("breakranks: unexpected ZeroDivisionError: ?[31mhello\n")
    assert "BREAKRANKS_DEBUG=1 breakranks stacks" in err and "Traceback" not in err
    monkeypatch.setenv("BREAKRANKS_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main.main(["stacks"])


def test_interrupts_are_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job_selection, "backend_of", interrupted)
    assert run_main("stacks", capsys=capsys) == (130, "", "")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    save(job(), str(tmp_path / "x.brk"))
    command = shlex.join([sys.executable, "-m", "breakranks", "stacks", str(tmp_path / "x.brk")])
    done = subprocess.run(
        ["bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "" and done.stdout.strip() in ("0", "141")
    until_closed = "(trap '' PIPE; while echo; do :; done) 2>/dev/null"
    closed = subprocess.run(
        ["bash", "-c", f"({until_closed}; {command}) | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (closed.stdout.strip(), closed.stderr) == ("141", "")


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    save(job(), str(tmp_path / "x.brk"))
    command = [sys.executable, "-m", "breakranks", "stacks", str(tmp_path / "x.brk")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr
        == "breakranks: cannot write the output: No space left on device\n  Check whether the disk is full.\n"
    )
    closed = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", *command], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")


def test_ranks_are_checked_against_the_job() -> None:
    assert selected_ranks(None, [0]) is None
    assert selected_ranks("0-1", range(4)) == RankSet([0, 1])
    assert selected_ranks("5", range(4), (Missing(ranks="4-5", reason="exited"),)) == RankSet([5])
    for bad, hint in (("4", "The job has ranks 0-3."), ("", "Write"), ("x", "Write"), ("9" * 5000, "Write")):
        with pytest.raises(UsageError) as caught:
            selected_ranks(bad, range(4))
        assert hint in caught.value.help


def test_start_up_imports_little() -> None:
    """``--help`` loads only what the command line needs; ``stacks`` of this machine neither hosts nor rules."""

    def modules(*words: str) -> set[str]:
        code = (
            "import sys; from breakranks.cli.main import main; "
            f"main({list(words)!r}); print(*sys.modules, file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return set(done.stderr.split())

    helped = modules("--help")
    assert not helped & {"msgspec", "rich", "subprocess", "asyncio", "breakranks.cli.stacks"}
    shown = modules("stacks", "pid:4999999")
    assert "breakranks.show.stack_tree" in shown
    heavy = {
        "msgspec",
        "rich",
        "pystack",
        "asyncio",
        "breakranks.inject",
        "breakranks.hosts",
        "breakranks.explain.verdict",
    }
    assert not shown & heavy
