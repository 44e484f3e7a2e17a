"""The others wait for their overlapped all_reduce; rank 1 waits for a thread that fetches its next batch."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from mark import ready


def fetch() -> torch.Tensor:
    time.sleep(100_000)
    return torch.ones(8)


def next_batch(pool: ThreadPoolExecutor) -> torch.Tensor:
    return pool.submit(fetch).result()


def reduce_overlapped(gradients: torch.Tensor) -> None:
    work = dist.all_reduce(gradients, async_op=True)
    work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 1:
        next_batch(ThreadPoolExecutor(1))
    reduce_overlapped(torch.ones(8))


if __name__ == "__main__":
    main()
