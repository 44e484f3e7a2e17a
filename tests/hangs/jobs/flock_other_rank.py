"""Rank 0 calls a barrier while it holds the lock that the others need before they can come to the barrier."""

import fcntl
import os
import time

import torch.distributed as dist
from mark import ready, work_path


def prepare_cache(rank: int) -> None:
    with open(work_path("cache.lock"), "w") as lock:
        if rank != 0:
            # So that it is always rank 0 that comes first.
            while not os.path.exists(work_path("ready.0")):
                time.sleep(0.05)
            ready()
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if rank == 0:
            ready()
        dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    prepare_cache(dist.get_rank())


if __name__ == "__main__":
    main()
