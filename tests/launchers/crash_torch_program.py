"""A small training of gloo, in which rank 1 fails at step 3 as its argument says."""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ODD_STEP = 3
MUCH_BYTES = 1 << 30


def check_shapes() -> None:
    expected, seen = 3, 2
    assert seen == expected, f"batch has {seen} columns"


def fill_memory(group: str) -> None:
    """Move into a control group whose memory is limited, and allocate more."""
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    allocate_cache()


def allocate_cache() -> bytes:
    return b"x" * MUCH_BYTES


def wait_for_quota() -> None:
    while True:
        time.sleep(600)


def main(mode: str, *words: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    (Path.cwd() / f"ready.{rank}").write_text(str(os.getpid()))
    for step in range(10):
        if rank == 1 and step == ODD_STEP:
            {"assert": check_shapes, "memory": fill_memory, "hang": wait_for_quota}[mode](*words)
        dist.all_reduce(torch.ones(4))
        print(f"step {step} done", flush=True)


main(*sys.argv[1:])
