"""Rank 0 rebuilds the index under a lock that a process outside the job holds."""

import fcntl

import torch.distributed as dist
from mark import ready, work_path


def rebuild_index() -> None:
    with open(work_path("index.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 0:
        rebuild_index()
    dist.barrier()


if __name__ == "__main__":
    main()
