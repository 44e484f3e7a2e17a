"""What launchers, schedulers, shells and the kernel print about processes that ended.

The files in ``tests/data/logs/lines`` are the output of real jobs of two to four ranks (torch 2.13, deepspeed 0.19,
accelerate 1.15, Open MPI 4.1, Slurm 22.05, MindSpore 2.10), with folders and host names replaced. MPICH, Open MPI 5,
older versions of torch and the kernel are quoted from public trackers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.logs.launcher_blocks import MAX_FOREIGN_LINES
from breakranks.logs.launcher_lines import TRIGGERS, LauncherReader
from breakranks.logs.log_events import (
    INITIATING,
    TEARDOWN,
    Event,
    ExitEvent,
    LogLine,
    RestartEvent,
    TimeoutEvent,
    TracebackEvent,
)
from breakranks.snapshot.model import Frame

LINES = Path(__file__).parents[1] / "data" / "logs" / "lines"
SUMMARY = """\
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-19_20:56:16
  host      : n2
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 7697)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 7697
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-19_20:56:15
  host      : n1
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 7698)  (SIGSEGV)
  error_file: /tmp/x/attempt_0/1/error.json
  traceback : Signal 11 (SIGSEGV) received by PID 7698
============================================================"""
SUMMARY_1_9 = """\
***************************************
         train.py FAILED               \n\
=======================================
Root Cause:
[0]:
  time: 2021-11-19_20:56:15
  rank: 1 (local_rank: 1)
  exitcode: 1 (pid: 7698)
  error_file: <N/A>
  msg: "Process failed with exitcode 1"
=======================================
Other Failures:
[1]:
  time: 2021-11-19_20:56:15
  rank: 0 (local_rank: 0)
  exitcode: -15 (pid: 7697)
  error_file: <N/A>
  msg: "Signal 15 (SIGTERM) received by PID 7697"
***************************************"""
HYDRA = """\
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 3 PID 1234 RUNNING AT c001-001
=   KILLED BY SIGNAL: 9 (Killed)
==================================================================================="""
MPICH = """\
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 12196 RUNNING AT e16
=   EXIT CODE: {code}
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
==================================================================================="""
FATAL = """\
Fatal Python error: Segmentation fault

Thread 0x00007fb000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007fb01444bb80 [python] (most recent call first):
  File "/home/user/model.py", line 21 in forward
  File "/home/user/train.py", line 90 in <module>

Extension modules: numpy._core._multiarray_umath (total: 1)"""
TERMINATE = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG 3 Rank 5] Process group watchdog thread terminated with exception: NCCL error: unhandled system error
Last error:
socketProgress: Connection closed by remote peer n2<40123>
Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:609 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f3b6d41df86 in /opt/torch/lib/libc10.so)
frame #1: c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 (0x7f3b6e7213a3 in /opt/torch/lib/libtorch_cuda.so)

next line"""
STACK = """\
[rank3]:[E710 18:00:32.427312432 ProcessGroupNCCL.cpp:801] Stack trace of the failed collective: \n\
#0 all_reduce from /opt/torch/distributed/distributed_c10d.py:3174
#1 wrapper from /opt/torch/distributed/c10d_logger.py:83
#2 _decode from /home/user/model.py:2574

"""


def _read(text: str, rank: int = -1, voice: str = "") -> list[Event]:
    reader = LauncherReader()
    lines = [LogLine(line, rank, voice=voice, position=at) for at, line in enumerate(text.split("\n"))]
    return [*(event for line in lines for event in reader.feed(line)), *reader.finish()]


def _exits(events: Iterable[Event]) -> list[ExitEvent]:
    return [event for event in events if isinstance(event, ExitEvent)]


def _file(name: str) -> list[ExitEvent]:
    return _exits(_read((LINES / f"{name}.txt").read_text()))


def _told(event: ExitEvent) -> tuple[object, ...]:
    return event.reporter, event.rank, event.local_rank, event.code, event.signal, event.first, event.role


def test_torchrun() -> None:
    closing, failed, other, root = _file("torchrun_raise")

    assert _told(closing) == ("torchrun", -1, -1, -1, 15, False, TEARDOWN)
    assert _told(failed) == ("torchrun", -1, 1, 1, 0, True, INITIATING)
    assert _told(other) == ("torchrun", 0, 0, -1, 15, False, TEARDOWN)
    assert _told(root) == ("torchrun", 1, 1, 1, 0, True, INITIATING)
    assert (closing.pid, failed.pid, root.host) == (other.pid, root.pid, "localhost")
    assert root.time == other.time > 0


@pytest.mark.parametrize(("name", "signal"), [("torchrun_segv", 11), ("torchrun_kill", 9)])
def test_torchrun_signal(name: str, signal: int) -> None:
    root = [event for event in _file(name) if event.rank == 1]

    assert [_told(event) for event in root] == [("torchrun", 1, 1, -1, signal, True, INITIATING)]


def test_rank_that_was_ended_from_outside_is_the_root_cause() -> None:
    """GIVEN a rank that got SIGTERM from another program than torchrun."""
    told = _file("torchrun_term")

    assert [(event.signal, event.first, event.role) for event in told if event.rank == 1] == [(15, True, INITIATING)]
    assert [event.role for event in told if event.rank == 0] == [TEARDOWN]


@pytest.mark.parametrize(
    "text",
    [
        "Sending process 11 closing signal SIGTERM",
        "[2026-11-19 20:57:38,331] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 11",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    ],
)
def test_kill_after_a_launcher_began_to_end_ranks_is_its_own(text: str) -> None:
    assert _exits(_read(f"{text}\nKilled"))[-1].role == TEARDOWN
    assert _exits(_read(f"Killed\n{text}"))[0].role == INITIATING


def test_kill_after_a_restart_counts_again() -> None:
    restart = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group"

    assert _exits(_read(f"Sending process 11 closing signal SIGTERM\n{restart}\nKilled"))[-1].role == INITIATING


def test_torchrun_summary_of_two_hosts() -> None:
    other, root = _exits(_read(SUMMARY))

    assert (other.host, other.rank, other.pid, other.error_file, other.role) == ("n2", 8, 7697, "", TEARDOWN)
    assert (root.host, root.rank, root.signal, root.first) == ("n1", 1, 11, True)
    assert root.error_file == "/tmp/x/attempt_0/1/error.json"
    assert root.time == other.time - 1


def test_torchrun_summary_of_torch_1_9() -> None:
    root, other = _exits(_read(SUMMARY_1_9))

    assert _told(root) == ("torchrun", 1, 1, 1, 0, True, INITIATING)
    assert _told(other) == ("torchrun", 0, 0, -1, 15, False, TEARDOWN)


def test_torchrun_summary_with_the_traceback_of_record() -> None:
    """GIVEN the summary of a script with @record, whose root cause holds a traceback."""
    events = _file("record_rec")

    assert [(event.rank, event.code) for event in events if event.rank >= 0] == [(1, -1), (2, -1), (0, 1)]
    assert events[-1].error_file.endswith("/attempt_0/0/error.json")


def test_summary_with_lines_of_ranks_between() -> None:
    lines = SUMMARY.split("\n")
    mixed = "\n".join(f"{line}\nstep {at} loss 0.3" for at, line in enumerate(lines))

    assert [_told(event) for event in _exits(_read(mixed))] == [_told(event) for event in _exits(_read(SUMMARY))]


def test_summary_that_was_cut_off() -> None:
    cut = SUMMARY.split("\n  error_file: /tmp")[0]

    assert [event.rank for event in _exits(_read(cut))] == [8, 1]


def test_report_of_each_voice_is_read_apart() -> None:
    reader = LauncherReader()
    events: list[Event] = []
    for text in SUMMARY.split("\n"):
        for voice in ("n1", "n2"):
            events += reader.feed(LogLine(text, voice=voice))
    events += reader.finish()

    assert [event.rank for event in _exits(events)] == [8, 8, 1, 1]


def test_reader_is_open_within_a_report_only() -> None:
    reader = LauncherReader()
    seen = []
    for text in SUMMARY.split("\n"):
        list(reader.feed(LogLine(text)))
        seen.append(reader.open)
    for _ in range(3):
        list(reader.feed(LogLine("step 3 loss 0.2")))

    assert all(seen)
    assert not reader.open


def test_report_that_goes_on_with_other_lines_is_closed() -> None:
    reader = LauncherReader()
    list(reader.feed(LogLine("train.py FAILED")))

    for _ in range(MAX_FOREIGN_LINES):
        list(reader.feed(LogLine("step 3 loss 0.2")))

    assert not reader.open


def test_restart() -> None:
    text = (LINES / "torchrun_restart_info.txt").read_text()

    restarts = [event for event in _read(text) if isinstance(event, RestartEvent)]

    assert [(event.attempt, event.left) for event in restarts] == [(1, 0)]


def test_restarts_are_counted() -> None:
    line = "INFO:torch.distributed:[default] Worker group FAILED. {}/3 attempts left; will restart worker group"
    joined = "[default] Detected 1 new nodes from group_rank=0; will restart worker group"

    events = _read("\n".join((line.format(3), line.format(2), joined)))

    assert [(event.attempt, event.left) for event in events if isinstance(event, RestartEvent)] == [
        (1, 2),
        (2, 1),
        (3, -1),
    ]


@pytest.mark.parametrize(
    ("name", "code", "signal"), [("deepspeed_raise", 1, 0), ("deepspeed_kill", -1, 9), ("deepspeed_exit3", 3, 0)]
)
def test_deepspeed(name: str, code: int, signal: int) -> None:
    ended, failed, told = _file(name)

    assert [event.role for event in (ended, failed, told)] == [TEARDOWN, TEARDOWN, INITIATING]
    assert (ended.local_rank, failed.local_rank) == (0, 1)
    assert _told(told) == ("deepspeed", -1, 1, code, signal, True, INITIATING)


@pytest.mark.parametrize(
    ("name", "rank", "code", "signal"),
    [("mpirun_exit3", 1, 3, 0), ("mpirun_raise", 1, 1, 0), ("mpirun_kill", 1, -1, 9), ("mpirun_segv", 1, -1, 11)],
)
def test_open_mpi_4(name: str, rank: int, code: int, signal: int) -> None:
    (told,) = _file(name)

    assert _told(told) == ("mpirun", rank, -1, code, signal, True, INITIATING)
    assert told.pid == -1, "it prints 0 for a pid that it does not know"


@pytest.mark.parametrize(
    ("text", "rank", "code", "signal", "host"),
    [
        (
            "prterun noticed that process rank 2 with PID 1617008 on node cpu155 exited on\n"
            "signal 4 (Illegal instruction).",
            2,
            -1,
            4,
            "cpu155",
        ),
        (
            "mpirun noticed that process rank 0 with PID 26386 on node n155\nexited on signal 11 (Segmentation fault).",
            0,
            -1,
            11,
            "n155",
        ),
        (
            "prterun detected that one or more processes exited with non-zero status,\nthus causing the job to be "
            "terminated. The first process to do so was:\n\n   Process name: [prterun-gpu013-1009179@1,3]\n"
            "   Exit code:    127",
            3,
            127,
            0,
            "",
        ),
        ("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 3.", 1, 3, 0, ""),
        (
            "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Proc: [[4321,1],1]\n  Errorcode: 3",
            1,
            3,
            0,
            "",
        ),
        ("application called MPI_Abort(MPI_COMM_WORLD, 7) - process 5", 5, 7, 0, ""),
        ("[n1:26386] Signal: Segmentation fault (11)", -1, -1, 11, "n1"),
        (HYDRA, 3, -1, 9, "c001-001"),
        (MPICH.format(code=1), -1, 1, 0, "e16"),
        (
            MPICH.format(code=9) + "\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
            -1,
            -1,
            9,
            "e16",
        ),
    ],
)
def test_mpi(text: str, rank: int, code: int, signal: int, host: str) -> None:
    (told,) = _exits(_read(text + "\nnext line\nnext line"))

    assert (told.reporter, told.rank, told.code, told.signal, told.host) == ("mpirun", rank, code, signal, host)


def test_pid_of_open_mpi_signal_handler() -> None:
    (told,) = _exits(_read("[n1:26386] *** Process received signal ***\n[n1:26386] Signal: Aborted (6)", rank=4))

    assert (told.pid, told.rank, told.signal) == (26386, 4, 6)


def test_slurm_step_that_srun_ends_after_a_failure() -> None:
    told = _file("srun_exit3")

    assert [(event.rank, event.code, event.signal, event.role) for event in told] == [
        (1, 3, 0, INITIATING),
        (0, -1, 15, TEARDOWN),
        (2, -1, 15, TEARDOWN),
        (3, -1, 15, TEARDOWN),
    ]
    assert {event.host for event in told} == {"n1"}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("srun_all1", [(0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 1, 0)]),
        ("srun_kill", [(1, -1, 9)]),
        ("srun_wait", [(1, 4, 0)]),
        ("srun_scancel", []),
    ],
)
def test_slurm(name: str, wanted: list[tuple[int, int, int]]) -> None:
    initiating = [event for event in _file(name) if event.role == INITIATING]

    assert [(event.rank, event.code, event.signal) for event in initiating] == wanted


def test_slurm_task_that_is_killed_after_the_step_was_aborted() -> None:
    (told,) = (event for event in _file("srun_wait") if event.rank == 0)

    assert (told.signal, told.role) == (9, TEARDOWN)


def test_slurm_core_and_memory() -> None:
    text = "srun: error: n1: task 3: Segmentation fault (core dumped)\nsrun: error: n2: task 4: Out Of Memory"

    core, memory = _exits(_read(text))

    assert (core.rank, core.signal, core.core_dumped) == (3, 11, True)
    assert (memory.rank, memory.signal, memory.host, memory.role) == (4, 9, "n2", INITIATING)


def test_pdsh() -> None:
    (told,) = _exits(_read("pdsh@login: n2: ssh exited with exit code 255"))

    assert (told.reporter, told.host, told.code) == ("pdsh", "n2", 255)


@pytest.mark.parametrize(("name", "code", "signal"), [("msrun_kill", -1, 9), ("msrun_raise", 1, 0)])
def test_msrun_whose_workers_tell_their_ranks(name: str, code: int, signal: int) -> None:
    told = _file(name)[0]

    assert (told.reporter, told.rank, told.code, told.signal, told.role) == ("msrun", 1, code, signal, INITIATING)


def test_lightning_kills_itself_after_a_failure() -> None:
    text = "[rank: 1] Child process with PID 9487 terminated with code -6. Forcefully terminating"

    failed, killed = _exits(_read(text + "\nKilled"))

    assert (failed.reporter, failed.rank, failed.pid, failed.signal, failed.first) == ("lightning", 1, 9487, 6, True)
    assert (killed.signal, killed.role) == (9, TEARDOWN)


@pytest.mark.parametrize(
    "text",
    [
        "failed (exitcode: 1) local_rank: 1 (pid: 11) of fn: trainer (start_method: spawn)",
        "ERROR:torch.distributed.elastic:failed (exitcode: 1) local_rank: 1 (pid: 11) of binary: /x/python",
    ],
)
def test_torchrun_says_that_a_process_failed(text: str) -> None:
    (told,) = _exits(_read(text))

    assert (told.local_rank, told.pid, told.code) == (1, 11, 1)


@pytest.mark.parametrize(
    "text",
    [
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 11 closing signal SIGTERM",
        "W1 x] Closing process 11 via signal SIGTERM",
        "Unable to shutdown process 11 via 15, forcefully exiting via 9",
    ],
)
def test_torchrun_ends_a_process(text: str) -> None:
    (told,) = _exits(_read(text))

    assert (told.pid, told.role) == (11, TEARDOWN)
    assert told.signal in (9, 15)


def test_workers_that_msrun_ended() -> None:
    first, other = _exits(
        _read(
            "Worker process 11 exit with exception. Error code: 1.\n"
            "There's worker exits with exception, kill all other workers.\n"
            "Worker process 12 exit with exception. Error code: -9."
        )
    )

    assert (first.pid, first.code, first.role) == (11, 1, INITIATING)
    assert (other.pid, other.signal, other.role) == (12, 9, TEARDOWN)


def test_process_that_mpich_ended() -> None:
    first, other = _exits(_read(f"{HYDRA}\n\n{HYDRA.replace('SIGNAL: 9 (Killed)', 'SIGNAL: 15 (Terminated)')}"))

    assert (first.signal, first.role) == (9, INITIATING)
    assert (other.signal, other.role) == (15, TEARDOWN)


def test_spawn() -> None:
    (told,) = _file("plain_spawn")

    assert _told(told) == ("python", -1, 1, -1, 9, True, INITIATING)


@pytest.mark.parametrize(
    ("name", "code", "signal"), [("accelerate_simple_raise", 1, 0), ("accelerate_simple_kill", -1, 9)]
)
def test_accelerate_with_one_process(name: str, code: int, signal: int) -> None:
    (told,) = _file(name)

    assert (told.reporter, told.code, told.signal) == ("accelerate", code, signal)


def test_command_that_a_script_called_is_no_rank() -> None:
    text = "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1."

    assert _read(text) == []


def test_shell() -> None:
    told = _file("shell")

    assert [(event.reporter, event.signal) for event in told] == [("shell", 9), ("shell", 11), ("shell", 6)]
    assert all(event.pid > 0 for event in told)


@pytest.mark.parametrize(
    ("text", "pid", "signal", "core", "role"),
    [
        ("Killed", -1, 9, False, INITIATING),
        ("Segmentation fault (core dumped)", -1, 11, True, INITIATING),
        ("Aborted (core dumped)", -1, 6, True, INITIATING),
        ("Bus error", -1, 7, False, INITIATING),
        ("bash: line 1: Aborted", -1, 6, False, INITIATING),
        ("zsh: killed     python train.py", -1, 9, False, INITIATING),
        ("zsh: segmentation fault (core dumped)  python train.py", -1, 11, True, INITIATING),
        ("Terminated", -1, 15, False, TEARDOWN),
        ("run.sh: line 3: 12345 Killed                  python train.py", 12345, 9, False, INITIATING),
        ("/x/run.sh: line 30: 7 Segmentation fault      (core dumped) python train.py", 7, 11, True, INITIATING),
    ],
)
def test_words_of_a_shell(text: str, pid: int, signal: int, core: bool, role: str) -> None:
    (told,) = _exits(_read(text))

    assert (told.pid, told.signal, told.core_dumped, told.role) == (pid, signal, core, role)


@pytest.mark.parametrize(
    "text",
    [
        "[1.2] Out of memory: Killed process 4711 (python3) total-vm:9kB",
        "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB",
    ],
)
def test_kernel(text: str) -> None:
    (told,) = _exits(_read(text))

    assert (told.reporter, told.pid, told.signal) == ("kernel", 4711, 9)


def test_fatal_error_of_python() -> None:
    (event,) = _read(FATAL + "\nnext line")

    assert isinstance(event, TracebackEvent)
    assert (event.raised.type, event.raised.message) == ("Fatal Python error", "Segmentation fault")
    assert event.raised.frames == (
        Frame("<module>", "/home/user/train.py", 90),
        Frame("forward", "/home/user/model.py", 21),
    )
    assert (event.line.position, event.last_position) == (0, 9)


def test_fatal_error_of_python_in_a_real_job() -> None:
    events = _read((LINES / "torchrun_faulthandler.txt").read_text())

    (traceback,) = (event for event in events if isinstance(event, TracebackEvent))
    assert [frame.line for frame in traceback.raised.frames] == [21]
    assert [event.rank for event in _exits(events) if event.signal == 11 and event.rank >= 0] == [1]


@pytest.mark.parametrize("cut", range(1, 7))
def test_fatal_error_of_python_that_was_cut_off(cut: int) -> None:
    (event,) = _read("\n".join(FATAL.split("\n")[:cut]))

    assert isinstance(event, TracebackEvent)
    assert event.raised.message == "Segmentation fault"
    assert event.raised.frames == ()


def test_exception_of_native_code() -> None:
    (event,) = _read(TERMINATE)

    assert isinstance(event, TracebackEvent)
    assert event.raised.type == "c10::DistBackendError"
    assert event.raised.message.endswith("Last error:\nsocketProgress: Connection closed by remote peer n2<40123>")
    assert [frame.function for frame in event.raised.frames] == [
        "c10d::ProcessGroupNCCL::watchdogHandler()",
        "c10::Error::Error(c10::SourceLocation, std::string)",
    ]
    assert all(frame.native for frame in event.raised.frames)


def test_exception_of_native_code_without_a_stack() -> None:
    event, aborted = sorted(_read((LINES / "cxx.txt").read_text()), key=lambda event: event.line.position)

    assert isinstance(event, TracebackEvent)
    assert (event.raised.type, event.raised.message) == ("std::runtime_error", "bad shape")
    assert isinstance(aborted, ExitEvent)
    assert aborted.signal == 6


def test_stack_of_a_collective_that_timed_out() -> None:
    (event,) = _read(STACK)

    assert isinstance(event, TimeoutEvent)
    assert event.rank == 3
    assert event.frames[0] == Frame("_decode", "/home/user/model.py", 2574)
    assert event.frames[-1].function == "all_reduce"


def test_stack_that_was_not_found_is_no_event() -> None:
    text = (
        "[rank3]:[E7 x] Stack trace of the failed collective not found, potentially because FlightRecorder is disabled."
    )

    assert _read(text + "\nnext\nnext") == []


STARTS = [
    *(line for name in ("torchrun_raise", "deepspeed_kill", "mpirun_kill", "mpirun_exit3", "srun_segv", "msrun_kill")
      for line in (LINES / f"{name}.txt").read_text().split("\n")),
    *(text.split("\n")[0] for text in (SUMMARY, FATAL, TERMINATE, STACK)),
    HYDRA.split("\n")[1],
]  # fmt: skip


def test_scanner_looks_at_each_line_that_begins_something() -> None:
    reader = LauncherReader()
    found = 0
    for text in STARTS:
        within = reader.open
        events = list(reader.feed(LogLine(text)))
        if events or (reader.open and not within):
            found += 1
            assert within or any(trigger in text.encode() for trigger in TRIGGERS), text

    assert found >= 15


@given(st.lists(st.sampled_from([*STARTS, *SUMMARY.split("\n"), "step 3 loss 0.2", ""]), max_size=60))
def test_lines_in_any_order_are_read_without_an_error(texts: list[str]) -> None:
    reader = LauncherReader()

    for text in texts:
        for event in reader.feed(LogLine(text)):
            assert isinstance(event, ExitEvent | TracebackEvent | TimeoutEvent | RestartEvent)
    list(reader.finish())

    assert not reader.open
