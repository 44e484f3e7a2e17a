"""Flight recorders from a few words: what each rank called, and what of it has not completed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

START = 1_790_000_000_000_000_000
SECOND = 1_000_000_000


class Call(NamedTuple):
    """``group`` is a name of the ``groups`` that are given; a pending call has not completed."""

    group: str
    op: str = "all_reduce"
    size: Sequence[int] = (4,)
    dtype: str = "Float"
    pending: bool = False
    line: int = 10


def pending(group: str, op: str = "all_reduce", size: Sequence[int] = (4,), **more: Any) -> Call:
    return Call(group, op, size, pending=True, **more)


def dump(
    calls: Sequence[Call],
    groups: Mapping[str, Sequence[int]],
    *,
    forgotten: int = 0,
    backend: str = "nccl",
    version: str = "2.10",
    start: int = START,
) -> dict[str, Any]:
    """A dump as torch 2.13 writes it; ``forgotten`` calls were there before and the ring has lost them."""
    names = list(groups)
    numbers = dict.fromkeys(names, 0)
    entries = []
    for record, call in enumerate(calls):
        transfer = call.op.startswith(("send", "recv"))
        numbers[call.group] += not transfer
        done = not call.pending
        entries.append(
            {
                "frames": [
                    {"name": call.op, "filename": "/v/site-packages/torch/distributed/distributed_c10d.py", "line": 1},
                    {"name": "step", "filename": "/home/me/train.py", "line": call.line},
                ],
                "record_id": record,
                "pg_id": names.index(call.group),
                "process_group": (str(names.index(call.group)), call.group),
                "thread_name": "python3",
                "thread_id": "140000000000000",
                "collective_seq_id": numbers[call.group],
                "p2p_seq_id": int(transfer),
                "op_id": record + 1,
                "profiling_name": f"{backend}:{call.op}",
                "time_created_ns": start + record * SECOND,
                "input_sizes": [list(call.size)] if call.op != "barrier" else [],
                "input_dtypes": [call.dtype] if call.op != "barrier" else [],
                "output_sizes": [list(call.size)] if call.op != "barrier" else [],
                "output_dtypes": [call.dtype] if call.op != "barrier" else [],
                "state": "completed" if done and backend == "nccl" else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": done,
                "timeout_ms": 600000,
                "is_p2p": transfer,
            }
        )
    config = {
        str(index): {"name": str(index), "desc": name, "ranks": str(list(groups[name]))}
        for index, name in enumerate(names)
    }
    return {
        "version": version,
        "pg_config": config if backend == "nccl" else {"": {"name": "", "desc": "", "ranks": "[]"}},
        "pg_status": {},
        "comm_lib_version": "2.28.9",
        "entries": entries[forgotten:],
    }


def write(
    folder: Path,
    calls: Mapping[int, Sequence[Call]],
    groups: Mapping[str, Sequence[int]],
    *,
    as_json: bool = False,
    forgotten: Mapping[int, int] | None = None,
    **more: Any,
) -> Path:
    """A folder of dumps, one a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, its in calls.items():
        top = dump(its, groups, forgotten=(forgotten or {}).get(rank, 0), **more)
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(json.dumps(top).encode() if as_json else pickle.dumps(top, 2))
    return folder
