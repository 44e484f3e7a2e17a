"""The end of a rank of torch.

gloo's threads release the tensors of a call after the call, and need the GIL for it. Where one does so while Python
ends, torch 2.13 aborts the process, whether breakranks has been in it or not (1 of 80 ranks on a busy machine).
"""

from __future__ import annotations

import os
import time

import torch.distributed as dist

_CHECKS = 5


def leave_group() -> None:
    """Destroy the process group, and give the GIL to its threads until all of them wait for the next call."""
    dist.destroy_process_group()
    idle, until = 0, time.monotonic() + 60
    while idle < _CHECKS and time.monotonic() < until:
        time.sleep(0.02)
        idle = idle + 1 if all(map(_waits, os.listdir("/proc/self/task"))) else 0


def _waits(tid: str) -> bool:
    """Whether a thread sleeps, or is not one of gloo. One that has the GIL, or waits for a CPU, does not sleep."""
    try:
        with open(f"/proc/self/task/{tid}/stat") as file:
            name, _, rest = file.read().rpartition(") ")
    except OSError:
        return True
    return "(pt_gloo" not in name or rest.startswith("S")
