"""Inspecting real processes from outside: states, calls, deadlines, locks, sockets, the watchdog."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from breakranks.backend.sampler import Sampler
from breakranks.introspect import process_queries
from breakranks.introspect.process_queries import VisitResult
from breakranks.jobs.targets import job_of_pids
from breakranks.observe import (
    kernel_locks,
    native_frames,
    open_files,
    process_state,
    ptrace_permissions,
    pyspy_parse,
    safe_locals,
)
from breakranks.observe.process_table import read_table
from breakranks.observe.pyspy_run import PySpyRun
from breakranks.observe.recorder.dump_parse import Dump
from breakranks.observe.sigcont_guard import Watchdog
from breakranks.snapshot.introspection import Introspection
from breakranks.snapshot.model import Problem, StackTable, Thread
from breakranks.snapshot.recorder_tables import Recorder, RecorderTable
from support.processes import Processes
from support.stalls import undisturbed
from support.targets import EVERY, Interpreter, on, on_every_python
from support.waiting import wait_for

from .programs import python

WAITS = "import time\ndef wait_here():\n  print('x'); time.sleep(500)\nwait_here()"


def main_thread(pid: int) -> process_state.ThreadState:
    return process_state.look(pid, process_state.IdleClock()).threads[0]


@on_every_python
def test_a_sleep_says_when_it_ends(interpreter: Interpreter) -> None:
    with python("import time; print('x'); time.sleep(500)", executable=interpreter.path) as process:
        thread = wait_for("its sleep", lambda: (t := main_thread(process.pid)).call is not None and t)
        assert isinstance(thread, process_state.ThreadState)
        assert thread.call is not None
        assert thread.call.name in ("clock_nanosleep", "select", "pselect6")
        assert thread.call.left is not None
        assert 400 < thread.call.left <= 500


@on_every_python
def test_a_wait_with_a_timeout_says_when_it_ends(interpreter: Interpreter) -> None:
    code = "import threading; l=threading.Lock(); l.acquire(); print('x'); l.acquire(timeout=300)"
    with python(code, executable=interpreter.path) as process:
        thread = wait_for(
            "its wait", lambda: (t := main_thread(process.pid)).call is not None and t.call.name == "futex" and t
        )
        assert isinstance(thread, process_state.ThreadState) and thread.call is not None
        assert thread.call.left is not None and 250 < thread.call.left <= 300


def test_a_wait_without_a_timeout_has_none() -> None:
    with python("import threading; l=threading.Lock(); l.acquire(); print('x'); l.acquire()") as process:
        thread = wait_for(
            "its wait", lambda: (t := main_thread(process.pid)).call is not None and t.call.name == "futex" and t
        )
        assert isinstance(thread, process_state.ThreadState) and thread.call is not None
        assert thread.call.left is None


@pytest.mark.skipif(not Path("/proc/self/sched").exists(), reason="this kernel has no /proc/PID/sched")
def test_idle_time_counts_from_when_the_thread_last_ran() -> None:
    with python("import time; print('x'); time.sleep(500)") as process:
        wait_for(
            "its sleep",
            lambda: main_thread(process.pid).call is not None and (main_thread(process.pid).idle or 0) > 0.2,
        )

        def look() -> None:
            began = time.monotonic()
            before = main_thread(process.pid).idle
            time.sleep(1.0)
            after = main_thread(process.pid).idle
            assert before is not None and after is not None
            assert 0.8 < after - before < time.monotonic() - began + 0.5

        undisturbed(look)


def test_the_file_of_a_blocked_read_is_named(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    code = f"import os; f=os.open({str(fifo)!r}, os.O_RDWR); print('x'); os.read(f, 1)"
    with python(code) as process:
        call = wait_for("its read", lambda: (c := main_thread(process.pid).call) is not None and c.name == "read" and c)
        opened, _ = open_files.opened(process.pid)
        assert next(f for f in opened if f.fd == call.fd).path == str(fifo)  # type: ignore[attr-defined]


def test_a_socket_names_its_peer_and_whose_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; s=socket.create_connection(('127.0.0.1', {port})); print('x'); s.recv(1)"
        with python(code) as process:
            connection, _ = server.accept()
            call = wait_for(
                "its recv", lambda: (c := main_thread(process.pid).call) is not None and c.name == "recvfrom" and c
            )
            _, inodes = open_files.opened(process.pid)
            found = open_files.sockets(process.pid, inodes, frozenset({call.fd}))  # type: ignore[attr-defined]
            one = next(s for s in found if s.fd == call.fd)  # type: ignore[attr-defined]
            assert one.peer == f"127.0.0.1:{port}"
            assert one.status == "established"
            assert one.peer_pid == os.getpid()
            connection.close()


def test_the_holder_of_a_flock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code = f"import fcntl; f=open({str(path)!r}); print('x'); fcntl.flock(f, fcntl.LOCK_EX)"
        with python(code) as process:
            call = wait_for(
                "its flock", lambda: (c := main_thread(process.pid).call) is not None and c.name == "flock" and c
            )
            thread = Thread(tid=process.pid, name="MainThread", call=call)  # type: ignore[arg-type]
            (lock,) = kernel_locks.waited_for(process.pid, (thread,), kernel_locks.kernel_locks())
            assert (lock.path, lock.holder, lock.kind) == (str(path), os.getpid(), "flock")


def test_a_lock_file_that_nobody_has_open_has_no_holder(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")
    thread = Thread(tid=1, name="MainThread", hints={"_jit_compile.build_directory": str(tmp_path)})
    (lock,) = kernel_locks.waited_for(os.getpid(), (thread,), [])
    assert lock.path == str(tmp_path / "lock")
    assert lock.holder == 0
    assert lock.age is not None and lock.age < 60


def test_a_lock_file_that_somebody_has_open_has_a_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("")
    with python(f"f=open({str(path)!r}); print('x'); input()") as process:
        thread = Thread(tid=1, name="MainThread", hints={"_poll.lock_filename": str(path)})
        (lock,) = kernel_locks.waited_for(os.getpid(), (thread,), [])
        assert lock.holder == process.pid
        assert "input()" in lock.holder_command


@on_every_python
def test_a_sweep_reads_every_process_and_says_what_it_could_not(interpreter: Interpreter) -> None:
    with python(WAITS, executable=interpreter.path) as process, Processes() as others:
        not_python = others.start(["sleep", "500"])
        found = pyspy_parse.sweep([process.pid, not_python.pid, 2**22 - 5])
    (thread,) = found[process.pid].threads
    assert thread.frames[-1].function == "wait_here"
    assert thread.frames[0].function == "<module>"
    assert found[not_python.pid].problem is not None
    assert "Python" in found[not_python.pid].problem.what
    assert found[2**22 - 5].problem is not None
    assert "ended" in found[2**22 - 5].problem.what


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can make a namespace")
@on(*(one for one in EVERY if one.version >= (3, 11)))  # before, py-spy reports no thread ids in a container
def test_threads_in_a_container_have_our_numbers(interpreter: Interpreter) -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); print(1); time.sleep(600)"
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", interpreter.path, "-u", "-c", code]
    with Processes() as processes:
        process = processes.start(words, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        pid = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        (found,) = pyspy_parse.sweep([pid], locals=False).values()
        assert sorted(thread.tid for thread in found.threads) == sorted(map(int, os.listdir(f"/proc/{pid}/task")))


@on_every_python
def test_only_allowed_locals_leave_the_process(interpreter: Interpreter) -> None:
    code = "import time\ndef f(step, password):\n  print('x'); time.sleep(500)\nf(7, 'hunter2')"
    with python(code, executable=interpreter.path) as process:
        found = pyspy_parse.sweep([process.pid])[process.pid]
    assert "hunter2" not in repr(found)
    assert safe_locals.keep("f", "/home/me/train.py", "step", "7") == "7"
    assert safe_locals.keep("f", "/home/me/train.py", "step", "'text'") is None
    assert safe_locals.keep("f", "/home/me/train.py", "password", "7") is None
    assert safe_locals.keep("recv", "/x/site-packages/torch/distributed/distributed_c10d.py", "src", "3") == "3"
    assert safe_locals.keep("recv", "/home/me/mine.py", "src", "3") is None
    assert safe_locals.keep("f", "/home/me/train.py", "p", "'/data/x.lock'") == "/data/x.lock"
    assert safe_locals.keep("f", "/home/me/train.py", "password", "'gridlock'") is None


def test_the_mark_of_a_frames_values_cannot_be_guessed_back() -> None:
    """GIVEN the same values in two runs of breakranks THEN their marks differ: each run has a secret key."""
    code = "from breakranks.observe.safe_locals import progress; print(progress(['1234']))"
    marks = {subprocess.check_output([sys.executable, "-c", code]) for _ in range(3)}
    assert len(marks) == 3
    assert safe_locals.progress(["1234"]) == safe_locals.progress(["1234"]) != safe_locals.progress(["1235"])


@on_every_python
def test_a_stopped_process_is_read_and_stays_stopped(interpreter: Interpreter) -> None:
    with python(WAITS, executable=interpreter.path) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for("its stop", lambda: process_state.process_state(process.pid) == "T")
        with Watchdog() as dog:
            dog.guard(process.pid)
            found = pyspy_parse.sweep([process.pid], gently=lambda pid: True)
        assert found[process.pid].threads[0].frames[-1].function == "wait_here"
        assert process_state.process_state(process.pid) == "T"


@on_every_python
def test_native_frames_lie_below_the_python_frame(interpreter: Interpreter) -> None:
    with python(
        "import threading; l=threading.Lock(); l.acquire(); print('x'); l.acquire()", executable=interpreter.path
    ) as process:
        wait_for("its sleep", lambda: main_thread(process.pid).call is not None)
        found, clean = native_frames.sweep([process.pid])
    assert clean
    frames = found[process.pid].threads[0].frames
    names = [frame.function for frame in frames]
    assert names[0] == "<module>"
    assert any("acquire" in name for name in names[1:]), names


def test_a_native_worker_that_gets_stuck_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A target that another tracer has stopped never answers. The sweep still ends, and reports it."""
    with (
        python("import time; print('x'); time.sleep(500)") as one,
        python("import time; print('x'); time.sleep(500)") as two,
    ):
        stuck = tmp_path / "stuck"
        stuck.write_text("#!/bin/sh\nexec sleep 600\n")
        stuck.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(stuck))  # the sweep ends its workers in any case
        found, clean = native_frames.sweep([one.pid, two.pid], deadline=0.1)
    assert not clean
    assert set(found) == {one.pid, two.pid}
    assert all(stacks.problem is not None for stacks in found.values())


def test_the_watchdog_continues_what_a_killed_inspector_left_stopped() -> None:
    """GIVEN a guarded process WHEN the inspector is killed while the process is stopped THEN it continues."""
    with python("import time; print('x'); time.sleep(500)") as target:
        inspector = (
            "import os, signal, sys, time\n"
            "from breakranks.observe.sigcont_guard import Watchdog\n"
            "dog = Watchdog(); dog.guard(int(sys.argv[1]))\n"
            "os.kill(int(sys.argv[1]), signal.SIGSTOP)\n"
            "print('x', flush=True); time.sleep(500)\n"
        )
        with python(inspector, str(target.pid)) as process:
            wait_for("its stop", lambda: process_state.process_state(target.pid) == "T")
            process.kill()
            process.wait()
            wait_for("its sleep", lambda: process_state.process_state(target.pid) == "S")


def test_the_watchdog_leaves_alone_what_was_stopped_before() -> None:
    with python("import time; print('x'); time.sleep(500)") as target:
        target.send_signal(signal.SIGSTOP)
        wait_for("its stop", lambda: process_state.process_state(target.pid) == "T")
        dog = Watchdog()
        dog.guard(target.pid)
        dog.close(clean=False)
        assert process_state.process_state(target.pid) == "T"


def test_another_users_process_names_the_user_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    problem = ptrace_permissions.denied(1)
    assert "another user" in problem.what
    assert "sudo" in problem.remedy


def test_a_traced_process_names_its_tracer() -> None:
    with python("import time; print('x'); time.sleep(500)") as target, Processes() as others:
        tracer = others.start(["strace", "-qq", "-o", "/dev/null", "-p", str(target.pid)])
        wait_for("strace", lambda: process_state.tracer_of(target.pid) == tracer.pid)
        problem = pyspy_parse.sweep([target.pid])[target.pid].problem
        tracer.terminate()
        tracer.wait()
    assert problem is not None
    assert f"process {tracer.pid}" in problem.what


def innermost(found: pyspy_parse.PythonStacks) -> str:
    assert found.problem is None, found.problem
    return found.threads[0].frames[-1].function


def test_another_tool_that_looks_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a process traced by strace WHEN strace detaches just after tracing was denied THEN the stack is read."""
    for_now = ptrace_permissions.for_now
    with python(WAITS) as target, Processes() as others:
        for _ in range(5):
            tracer = others.start(["strace", "-qq", "-o", "/dev/null", "-p", str(target.pid)])
            wait_for("strace", lambda tracer=tracer: process_state.tracer_of(target.pid) == tracer.pid)  # type: ignore[misc]

            def refused(pid: int, said: str, tracer: subprocess.Popen[Any] = tracer) -> bool:
                found = for_now(pid, said)
                tracer.terminate()
                tracer.wait()
                return found

            monkeypatch.setattr(ptrace_permissions, "for_now", refused)
            assert innermost(pyspy_parse.sweep([target.pid])[target.pid]) == "wait_here"
            assert tracer.poll() is not None, "tracing was not denied"


def test_two_who_look_at_once_both_see() -> None:
    with python(WAITS) as target:
        for _ in range(15):
            found: list[pyspy_parse.PythonStacks] = []

            def look(found: list[pyspy_parse.PythonStacks] = found) -> None:
                found.append(pyspy_parse.sweep([target.pid])[target.pid])

            lookers = [threading.Thread(target=look) for _ in range(2)]
            for inspector in lookers:
                inspector.start()
            for inspector in lookers:
                inspector.join()
            assert [innermost(one) for one in found] == ["wait_here"] * 2


def inspectors() -> list[int]:
    """The children of this process that run py-spy."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "py-spy"]


def test_a_look_that_is_given_up_leaves_nothing_behind() -> None:
    """GIVEN more processes than CPUs WHEN the caller stops after the first answer THEN no py-spy is left."""
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(python(WAITS)).pid for _ in range((os.cpu_count() or 2) + 3)]
        answers = PySpyRun(targets).answers()
        assert next(answers).pid in targets
        assert inspectors() != []
        answers.close()  # type: ignore[attr-defined]
        assert inspectors() == []
        assert signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        found = pyspy_parse.sweep(targets)
        assert [innermost(found[pid]) for pid in targets] == ["wait_here"] * len(targets)


def test_a_live_view_keeps_only_its_last_samples() -> None:
    with python(WAITS) as process:
        found = job_of_pids(read_table(), [process.pid])
        with Sampler(found, keep=3) as sampler:
            for _ in range(5):
                sampler.sample()
            [rank] = sampler.snapshot().ranks
    assert (sampler.sampled, len(rank.process.samples)) == (5, 3)


HAS_A_HELPER = f"""
import subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", {WAITS!r}])
print("x", flush=True)
helper.wait()
time.sleep(500)
"""


def test_a_live_view_forgets_helpers_that_have_ended() -> None:
    with python(HAS_A_HELPER) as process:
        [helper] = wait_for("the helper", lambda: [entry.pid for entry in read_table().children(process.pid)])
        with Sampler(job_of_pids(read_table(), [process.pid]), keep=2) as sampler:
            sampler.sample()
            assert helper in sampler._evidence.seen
            os.kill(helper, signal.SIGKILL)
            wait_for("the helper to be reaped", lambda: not os.path.exists(f"/proc/{helper}"))
            for _ in range(2):
                sampler.sample()
            assert set(sampler._evidence.seen) == {process.pid}


def test_a_rank_that_does_not_answer_again_keeps_its_answer() -> None:
    with python(WAITS) as process, Sampler(job_of_pids(read_table(), [process.pid])) as sampler:
        sampler.sample()
        answered = VisitResult(
            inside=Introspection(time=1.0), dump=Dump(Recorder(version="2.10", time=1.0), RecorderTable(), StackTable())
        )
        evidence = sampler._evidence
        evidence.add_visits({process.pid: answered})
        problem = Problem("no answer in time")
        evidence.add_visits({process.pid: VisitResult(dump=problem, problem=problem)})
        late, _ = evidence.visited[process.pid]
        assert (late.inside, late.dump, late.problem) == (answered.inside, answered.dump, problem)
        evidence.add_visits({process.pid: VisitResult(inside=Introspection(time=2.0))})
        assert evidence.visited[process.pid][0].inside == Introspection(time=2.0)


def test_what_a_rank_answered_outlives_one_stack_that_could_not_be_read(tmp_path: Path) -> None:
    # GIVEN a rank that polls for a file, and has answered so
    file = tmp_path / "program.py"
    file.write_text(
        "import os, time\n"
        "def poll(marker):\n"
        "    while os.path.exists(marker): time.sleep(0.05)\n"
        "print('x')\n"
        "poll(__file__)\n"
    )
    with (
        python(f"import runpy; runpy.run_path({str(file)!r})") as process,
        Sampler(job_of_pids(read_table(), [process.pid])) as sampler,
    ):

        def polled() -> list[str]:
            inside = sampler.snapshot().ranks[0].process.inside
            return [one.path for one in inside.polled] if inside is not None else []

        def answered() -> bool:
            sampler.sample(recorders=True)
            return polled() == [str(file)]

        wait_for("an answer", answered)
        seen = sampler._evidence.seen[process.pid]
        unread = seen[-1]._replace(python=pyspy_parse.PythonStacks((), Problem("py-spy was late")))

        # THEN it counts after one sample without a stack, and not after two
        seen.append(unread)
        assert polled() == [str(file)]
        seen.append(unread)
        assert polled() == []


def test_an_answer_without_a_thread_replaces_no_other(tmp_path: Path) -> None:
    # GIVEN a program that has not imported threading, so that neither of its threads is known as the main thread
    file = tmp_path / "program.py"
    file.write_text(
        "import _thread, os, time\n"
        "def idle(): print('x'); time.sleep(500)\n"
        "def poll(marker):\n"
        "    while os.path.exists(marker): time.sleep(0.05)\n"
        "_thread.start_new_thread(idle, ())\n"
        "poll(__file__)\n"
    )
    with python(f"import runpy; runpy.run_path({str(file)!r})") as process:
        found = job_of_pids(read_table(), [process.pid])
        with Sampler(found) as sampler:
            evidence = sampler._evidence
            earlier = VisitResult(inside=Introspection(time=1.0))

            # WHEN it is asked
            def answered() -> bool:
                sampler.sample()
                evidence.visited[process.pid] = (earlier, None)
                seen = {process.pid: sampler._seen_process(process.pid)}
                evidence.add_visits(results := process_queries.visit(seen, {}))
                return process.pid in results and results[process.pid].problem is None

            wait_for("an answer", answered)

            # THEN
            assert evidence.visited[process.pid][0].inside == earlier.inside


def test_a_lock_file_that_is_removed_during_the_look_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.lock"
    path.touch()

    def remove(*_: object, **__: object) -> int:
        path.unlink()
        return 0

    monkeypatch.setattr(open_files, "owner_of", remove)
    assert kernel_locks._by_path(os.getpid(), str(path), "own", []).kind == "gone"


def test_a_file_that_is_closed_during_the_look_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "open", "w") as file:
        names = ["99999", *os.listdir("/proc/self/fd")]
        monkeypatch.setattr(os, "listdir", lambda _: names)
        assert open_files.has_open(os.getpid(), os.path.realpath(file.name))
