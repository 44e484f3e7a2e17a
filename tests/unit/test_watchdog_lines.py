"""Lines of collectives that timed out, of each version of torch that prints them in another way.

The lines of NCCL are as issues on public trackers show them; those of gloo and the stores are of torch 2.13.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.logs.log_events import LogLine, Raised, TimeoutEvent
from breakranks.logs.watchdog_lines import TRIGGERS, read_timeout, timeout_of_exception, with_groups
from breakranks.snapshot.model import Frame

LINES = Path(__file__).parents[1] / "data" / "logs" / "lines"
WORK = "Watchdog caught collective operation timeout: WorkNCCL("
CAUGHT_2_9 = (
    f"[rank3]:[E710 18:00:32.426182607 ProcessGroupNCCL.cpp:757] [Rank 3] {WORK}SeqNum=59958, OpType=ALLREDUCE, "
    "NumelIn=8388608, NumelOut=8388608, Timeout(ms)=1800000) ran for 1800077 milliseconds before timing out."
)
STATE_2_9 = (
    "[rank3]:[E710 18:00:32.426302794 ProcessGroupNCCL.cpp:2395] [PG ID 1 PG GUID 3(mesh_tp) Rank 1] "
    " failure detected by "
    "watchdog at work sequence id: 59958 PG status: last enqueued work: 59998, last completed work: 59957"
)
DUMP_2_9 = (
    "[rank6]:[E703 21:51:54.112142364 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank "
    "6] Received a dump "
    "signal due to a collective timeout from  rank 7 and we will try our best to dump the debug "
    "info. Last enqueued NCCL "
    "work: 56116, last completed NCCL work: 56115.This is most likely caused by incorrect usages of collectives"
)
EXAMPLES: list[tuple[str, str, dict[str, object]]] = [
    (
        "torch 2.9: the watchdog of a rank",
        CAUGHT_2_9,
        {"rank": 3, "operation": "ALLREDUCE", "sequence": 59958, "timeout_ms": 1800000, "own": True, "group": ""},
    ),
    (
        "torch 2.9: the state of the group, whose rank is not that of the job",
        STATE_2_9,
        {
            "rank": 3,
            "sequence": 59958,
            "group": "3",
            "description": "mesh_tp",
            "last_enqueued": 59998,
            "last_completed": 59957,
            "operation": "",
        },
    ),
    (
        "torch 2.6 and later: a group without a description that completed nothing",
        "[rank1]:[E1218 20:27:21.484903450 ProcessGroupNCCL.cpp:2168] [PG ID 1 PG GUID 1 Rank 1]  failure detected by "
        "watchdog at work sequence id: 1 PG status: last enqueued work: 547, last completed work: -1",
        {"rank": 1, "sequence": 1, "group": "1", "last_enqueued": 547, "last_completed": -1},
    ),
    (
        "after 2.12: the work that was started last",
        "[PG ID 0 PG GUID 0(default_pg) Rank 2]  failure detected by watchdog at work sequence id: 7 PG status: last "
        "enqueued work: 9, last started work: 6, last completed work: 5",
        {"rank": 2, "last_enqueued": 9, "last_started": 6, "last_completed": 5},
    ),
    (
        "torch 2.4 and 2.5",
        "[rank0]:[E626 06:24:44.159932949 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 0] Exception "
        "(either an error or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed "
        "NCCL work: 807.",
        {"rank": 0, "sequence": 808, "last_enqueued": 811, "last_completed": 807, "group": "0"},
    ),
    (
        "torch 2.3 and 2.4",
        "[rank4]:[E1016 03:31:38.929234295 ProcessGroupNCCL.cpp:1709] [PG 3 Rank 4] Timeout at NCCL work: 9141, last "
        "enqueued NCCL work: 9141, last completed NCCL work: 9140.",
        {"rank": 4, "sequence": 9141, "group": "3", "last_enqueued": 9141, "last_completed": 9140},
    ),
    (
        "torch 2.0: no prefix of torch",
        f"[E ProcessGroupNCCL.cpp:458] [Rank 7] {WORK}SeqNum=64088, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for "
        "25625251 milliseconds before timing out.",
        {"rank": 7, "operation": "ALLREDUCE", "sequence": 64088, "timeout_ms": 1800000},
    ),
    (
        "torch 1.13: with shapes",
        f"[E ProcessGroupNCCL.cpp:828] [Rank 1] {WORK}SeqNum=9, OpType=BROADCAST, TensorShape=[4, 2], "
        f"Timeout(ms)=1800000)"
        " ran for 1802212 milliseconds before timing out.",
        {"rank": 1, "operation": "BROADCAST", "sequence": 9, "timeout_ms": 1800000},
    ),
    (
        "torch 1.9: no number",
        "[E ProcessGroupNCCL.cpp:566] [Rank 2] Caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
        "Timeout(ms)=1800000) ran for 1800116 milliseconds before timing out.",
        {"rank": 2, "operation": "ALLREDUCE", "sequence": -1, "timeout_ms": 1800000},
    ),
    (
        "Ascend's copy of the watchdog",
        "[rank1]:[E324 13:00:25.428029551 compiler_depend.ts:574] [Rank 1] Watchdog caught "
        "collective operation timeout: "
        "WorkHCCL(SeqNum=196, OpType=ALLREDUCE, Timeout(ms)=3600000) ran for 3600185 milliseconds before timing out.",
        {"rank": 1, "operation": "ALLREDUCE", "sequence": 196},
    ),
    (
        "blocking wait",
        "[Rank 0] Work WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=10000) timed out in blocking "
        "wait (NCCL_BLOCKING_WAIT=1).",
        {"rank": 0, "sequence": 5, "timeout_ms": 10000},
    ),
    (
        "who fired first",
        "[rank2]:[E710 18:00:32.4 ProcessGroupNCCL.cpp:2732] [PG ID 0 PG GUID 0(default_pg) Rank 2] "
        "First PG on this rank to "
        "signal dumping.",
        {"rank": 2, "own": True, "sequence": -1},
    ),
    (
        "who only heard of it",
        "[rank1]:[E703 21:51:54.1 ProcessGroupNCCL.cpp:1922] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
        "Observed flight recorder "
        "dump signal from another rank via TCPStore.",
        {"rank": 1, "own": False, "last_enqueued": -1},
    ),
    (
        "an echo with the state of the default group",
        DUMP_2_9,
        {"rank": 6, "own": False, "peer": "rank 7", "last_enqueued": 56116, "last_completed": 56115, "group": "0"},
    ),
    (
        "its own signal",
        DUMP_2_9.replace("from  rank 7", "from this local rank"),
        {"rank": 6, "own": True, "peer": "", "last_enqueued": 56116},
    ),
    (
        "torch 2.2",
        "[PG 0 Rank 5] Received a timeout signal from this local rank and will start to dump the "
        "debug info. Last enqueued "
        "NCCL work: 4, last completed NCCL work: 3.",
        {"rank": 5, "own": True, "last_enqueued": 4, "last_completed": 3},
    ),
    (
        "gloo",
        "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
        "Timed out waiting 5000ms "
        "for recv operation to complete",
        {"rank": 0, "operation": "recv", "timeout_ms": 5000, "own": True},
    ),
    ("gloo, after an earlier timeout", "RuntimeError: Application timeout caused pair closure", {"own": False}),
    (
        "gloo's group: the key names who never came",
        "[rank0]: torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//cpu//0/1",
        {"rank": 0, "operation": "store wait", "timeout_ms": 5000, "absent": "1"},
    ),
    (
        "another key names nobody",
        "torch.distributed.DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//nokey",
        {"operation": "store wait", "absent": "", "description": "/default_pg/0//nokey"},
    ),
    (
        "clients of the store",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        {"operation": "store join", "timeout_ms": 61000, "description": "1/2 joined"},
    ),
    (
        "torch 2.0: waiting for NCCL's identifier",
        "store->get('0') got error: Timeout waiting for key: default_pg/0//cuda//0 after 1800000 ms",
        {"operation": "store wait", "timeout_ms": 1800000, "description": "default_pg/0//cuda//0"},
    ),
    (
        "the barrier of init_process_group",
        "Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 "
        "(world_size=2, num_workers_joined=1, timeout=0:30:00)",
        {"rank": 1, "operation": "store barrier", "description": "1/2 joined"},
    ),
    (
        "the same before 2.1",
        "Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 "
        "(world_size=4, worker_count=3, timeout=0:30:00)",
        {"rank": 0, "description": "3/4 joined"},
    ),
    (
        "torchelastic since 2.5",
        "torch.distributed.DistStoreError: Timed out waiting on barrier on rank 0, for key prefix: torchelastic/agent "
        "(world_size=4, missing_ranks=[1, 3], timeout=300)",
        {"rank": 0, "absent": "1,3"},
    ),
    (
        "monitored_barrier",
        "[rank0]:[E1119 21:03:24.417205548 ProcessGroupGloo.cpp:2901] [Rank 0]: Rank 1 failed to "
        "pass monitoredBarrier in "
        "3000 ms",
        {"rank": 0, "operation": "monitored_barrier", "timeout_ms": 3000, "absent": "1"},
    ),
    (
        "monitored_barrier that waited for all",
        "RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 3000 ms",
        {"rank": 0, "absent": "1-2"},
    ),
    (
        "TORCH_NCCL_DESYNC_DEBUG",
        "	 - To our best knowledge, ranks [47, 48] are the lagging ranks that caused this timeout. "
        "They never joined any "
        "collectives",
        {"absent": "47-48"},
    ),
    (
        "CANN 8",
        "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The wait execution of the Notify register "
        "times out. Reason: The "
        "Notify register has not received the Notify record from remote rank: [24]. base information: [streamID:[109], "
        "taskID[38], tag[AllReduce_group_name_1654NHR], AlgType(level 0-1-2):[ring]]. group information: "
        "[group:[group_name_1654], rankSize[32], rankId[25 24]]",
        {"operation": "AllReduce", "peer": "rank 24", "group": "group_name_1654"},
    ),
]


@pytest.mark.parametrize(("text", "values"), [row[1:] for row in EXAMPLES], ids=[row[0] for row in EXAMPLES])
def test_line(text: str, values: dict[str, object]) -> None:
    event = read_timeout(LogLine(text))

    assert event is not None, text
    assert {name: getattr(event, name) for name in values} == values
    assert any(trigger in text.encode() for trigger in TRIGGERS), "the scanner would not look at it"


def test_prefix_of_the_line_tells_the_rank() -> None:
    event = read_timeout(LogLine(CAUGHT_2_9.replace("[rank3]:", ""), rank=11))

    assert event is not None
    assert event.rank == 11


def test_rank_within_a_group_is_not_taken_for_the_rank_of_the_job() -> None:
    event = read_timeout(LogLine(STATE_2_9.replace("[rank3]:", "")))

    assert event is not None
    assert event.rank == -1


def test_watchdog_is_joined_with_the_state_of_its_group() -> None:
    lines = [LogLine(text, position=at) for at, text in enumerate((CAUGHT_2_9, STATE_2_9, DUMP_2_9))]
    events = [event for line in lines if (event := read_timeout(line)) is not None]

    caught, state, dump = with_groups(events)

    assert (caught.operation, caught.group, caught.description) == ("ALLREDUCE", "3", "mesh_tp")
    assert (caught.last_enqueued, caught.last_completed) == (59998, 59957)
    assert [state, dump] == events[1:]


def test_watchdog_is_joined_with_a_state_after_it_of_the_same_work_only() -> None:
    later = STATE_2_9.replace("sequence id: 59958", "sequence id: 59960")
    caught, state, other = (read_timeout(LogLine(text)) for text in (CAUGHT_2_9, STATE_2_9, later))
    assert caught is not None and state is not None and other is not None

    assert with_groups([caught, other])[0] == caught
    assert with_groups([caught, other, state])[0].group == "3"
    before = with_groups([state, replace(caught, line=LogLine(CAUGHT_2_9, position=100))])
    assert before[1].group == ""


def test_watchdog_is_joined_with_the_stack_of_its_call() -> None:
    caught = read_timeout(LogLine(CAUGHT_2_9))
    frames = (Frame("main", "/home/user/train.py", 3),)
    assert caught is not None
    others = [TimeoutEvent(line=LogLine("x", position=at), rank=rank, frames=frames) for at, rank in ((5, 2), (9, 3))]

    assert with_groups([caught, others[1]])[0].frames == frames
    assert with_groups([caught, others[0]])[0].frames == ()


def test_watchdog_of_another_rank_is_not_joined() -> None:
    other = STATE_2_9.replace("[rank3]", "[rank2]")
    events = [event for text in (CAUGHT_2_9, other) if (event := read_timeout(LogLine(text))) is not None]

    assert with_groups(events) == events


def test_exception_with_the_text_of_a_watchdog() -> None:
    raised = Raised(type="torch.distributed.DistBackendError", message=CAUGHT_2_9.split("] ", 1)[1])

    event = timeout_of_exception(raised, LogLine("Traceback (most recent call last):", rank=3))

    assert event is not None
    assert (event.rank, event.operation, event.sequence) == (3, "ALLREDUCE", 59958)
    assert event.line.text.startswith("torch.distributed.DistBackendError: ")


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("torchrun_never", [(-1, "store wait", "1")]),
        ("torchrun_storewait", [(0, "store wait", ""), (1, "store wait", "")]),
        ("torchrun_timeout", [(0, "recv", "")]),
        ("record_mon", [(0, "monitored_barrier", "1"), (0, "monitored_barrier", "2"), (0, "monitored_barrier", "1-2")]),
        ("torchrun_raise", []),
        ("deepspeed_kill", []),
        ("msrun_raise", []),
    ],
)
def test_output_of_real_jobs(file: str, wanted: list[tuple[int, str, str]]) -> None:
    """GIVEN the output of a job of two or three ranks over gloo."""
    text = (LINES / f"{file}.txt").read_text()

    events = [event for line in text.splitlines() if (event := read_timeout(LogLine(line))) is not None]

    found = [(event.rank, event.operation, event.absent) for event in events]
    assert list(dict.fromkeys(found))[: len(wanted)] == wanted


@given(st.text(alphabet=st.sampled_from("[]() RankPGIDWork:=,0123456789lastenqudcompt")))
def test_torn_line_is_read_without_an_error(text: str) -> None:
    event = read_timeout(LogLine(f"Watchdog caught collective operation timeout: {text}"))

    assert isinstance(event, TimeoutEvent)
