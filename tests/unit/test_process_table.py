"""The process table: made from data, and read from the running system."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.observe.process_table import ProcessEntry, ProcessTable, read_entry, read_table


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


# --- from data ---------------------------------------------------------------------------------------

TREE = ProcessTable(
    [
        ProcessEntry(pid=1, ppid=0, name="init"),
        ProcessEntry(pid=10, ppid=1, name="bash", ticks=5),
        ProcessEntry(pid=12, ppid=10, name="python", ticks=9),
        ProcessEntry(pid=11, ppid=10, name="python", ticks=7),
        ProcessEntry(pid=20, ppid=11, name="python", ticks=8),
    ]
)


def test_children_are_the_oldest_first() -> None:
    assert [entry.pid for entry in TREE.children(10)] == [11, 12]


def test_descendants_come_after_their_parents() -> None:
    assert [entry.pid for entry in TREE.descendants(10)] == [11, 12, 20]


def test_ancestors_go_up_to_the_first_process() -> None:
    assert [entry.pid for entry in TREE.ancestors(20)] == [11, 10, 1]


def test_a_circle_of_parents_ends() -> None:
    table = ProcessTable([ProcessEntry(pid=2, ppid=3), ProcessEntry(pid=3, ppid=2), ProcessEntry(pid=4, ppid=4)])
    assert [entry.pid for entry in table.ancestors(2)] == [3]
    assert [entry.pid for entry in table.descendants(2)] == [3]
    assert table.ancestors(4) == () and table.descendants(4) == ()


@given(st.dictionaries(st.integers(1, 30), st.integers(0, 30), max_size=30))
def test_the_tree_is_the_same_from_above_and_from_below(parents: dict[int, int]) -> None:
    table = ProcessTable([ProcessEntry(pid=pid, ppid=parent) for pid, parent in parents.items()])
    for pid in parents:
        for below in table.descendants(pid):
            # In a cycle, every process is an ancestor and a descendant of every other.
            assert pid in {above.pid for above in table.ancestors(below.pid)} | {below.pid}


def test_what_was_not_given_is_unknown() -> None:
    assert TREE.command(11) == ()
    assert TREE.environ(11) is None
    assert not TREE.refused(11)
    assert TREE.namespace(11) == ""


@pytest.mark.parametrize(
    ("entry", "command", "expected"),
    [
        (ProcessEntry(pid=5, ppid=1, name="python", exe="python3.11"), (), True),
        (ProcessEntry(pid=5, ppid=1, name="pt_main_thread", exe="python3.11"), (), True),
        (ProcessEntry(pid=5, ppid=1, name="pypy3", exe="pypy3"), (), True),
        (ProcessEntry(pid=5, ppid=1, name="bash", exe="bash"), (), False),
        (ProcessEntry(pid=5, ppid=1, name="python", state="Z"), (), False),
        (ProcessEntry(pid=5, ppid=1, name="anything"), ("/usr/bin/python3", "x.py"), True),  # another user's
        (ProcessEntry(pid=5, ppid=1, name="kworker", kernel=True), (), False),
    ],
)
def test_is_python(entry: ProcessEntry, command: tuple[str, ...], expected: bool) -> None:
    assert ProcessTable([entry], commands={5: command}).is_python(entry) is expected


def test_a_program_that_embeds_python_is_python_when_asked_deeply() -> None:
    entry = ProcessEntry(pid=5, ppid=1, name="lammps", exe="lammps")
    table = ProcessTable([entry], libraries={5: "7f00-7f01 r-xp /usr/lib/libpython3.11.so.1.0"})
    assert not table.is_python(entry)
    assert table.is_python(entry, deep=True)


# --- from the running system -------------------------------------------------------------------------


def test_we_are_in_our_own_table() -> None:
    table = read_table()
    us = table.entries[os.getpid()]
    assert us.ppid == os.getppid()
    assert us.uid == os.geteuid()
    assert us.exe is not None and us.exe.startswith(("python", "pypy"))
    assert us.state in "RS"
    assert us.rss > 1_000_000
    assert us.cpu > 0
    assert abs(time.time() - us.started) < 3600 * 24
    assert table.own_pid == us.pid
    assert table.is_python(us)
    assert table.command(us.pid)[0] == sys.orig_argv[0]
    assert (table.environ(us.pid) or {}).get("PATH") is not None
    assert table.namespace(us.pid) == os.readlink("/proc/self/ns/pid")


def test_start_times_are_wall_clock_time() -> None:
    before = time.time()
    process = subprocess.Popen(["sleep", "600"])
    try:
        entry = read_entry(process.pid)
        assert entry is not None
        assert before - 0.1 <= entry.started <= time.time() + 0.1
    finally:
        process.kill()
        process.wait()
    assert read_entry(process.pid) is None


def test_a_name_with_spaces_and_brackets() -> None:
    setter = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) R (1 b'); print(1, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", setter], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        entry = read_entry(process.pid)
        assert entry is not None
        assert (entry.name, entry.ppid) == ("a) R (1 b", os.getpid())
    finally:
        process.kill()
        process.communicate()


def test_a_zombie_is_there_and_knows_little() -> None:
    process = subprocess.Popen(["true"])
    try:
        wait_until(lambda: (entry := read_entry(process.pid)) and entry.state == "Z")
        table = read_table()
        entry = table.entries[process.pid]
        assert (entry.ppid, entry.exe, entry.name) == (os.getpid(), None, "true")
        assert table.command(entry.pid) == ()
        assert table.environ(entry.pid) is None
        assert not table.is_python(entry, deep=True)
    finally:
        process.wait()


def test_a_process_that_ends_in_mid_look_is_no_error() -> None:
    process = subprocess.Popen(["sleep", "600"])
    table = read_table()
    process.kill()
    process.wait()
    assert process.pid in table
    assert table.command(process.pid) == ()
    assert table.environ(process.pid) is None
    assert not table.refused(process.pid)
    assert table.namespace(process.pid) == ""


def test_forked_is_told_from_executed() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    started = subprocess.Popen(["sleep", "600"])
    try:
        forked, executed = read_entry(child), read_entry(started.pid)
        assert forked is not None and forked.forked
        assert executed is not None and not executed.forked
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        started.kill()
        started.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_users_process_is_refused_not_lost() -> None:
    report = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from breakranks.observe.process_table import read_table\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "table = read_table(); entry = table.entries[int(sys.argv[1])]\n"
        "print(entry.exe, table.environ(entry.pid), table.refused(entry.pid), table.is_python(entry))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", report, str(process.pid), *sys.path], capture_output=True, text=True
        )
    finally:
        process.kill()
        process.wait()
    assert done.stdout.split() == ["None", "None", "True", "True"], done.stderr
