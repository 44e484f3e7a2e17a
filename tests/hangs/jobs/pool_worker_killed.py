"""A worker of rank 1's pool is killed over its item: the pool replaces it, and `map` waits for ever."""

import multiprocessing
import os
import signal

import torch.distributed as dist
from mark import ready


def tokenize(document: int) -> int:
    if document == 7:
        # What the kernel does to it when memory runs out.
        os.kill(os.getpid(), signal.SIGKILL)
    return document * 2


def tokenize_all() -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        ready()
        return pool.map(tokenize, range(16), chunksize=1)


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        tokenize_all()
    ready()
    dist.barrier()


if __name__ == "__main__":
    main()
