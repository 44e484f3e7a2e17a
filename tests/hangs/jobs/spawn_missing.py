"""Ranks started by torch.multiprocessing.spawn: nothing in their environment says who they are."""

import time

import torch
import torch.distributed as dist
import torch.multiprocessing
from mark import ready, work_path


def warm_cache() -> None:
    time.sleep(100_000)


def train(rank: int, world: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{work_path('store')}", rank=rank, world_size=world)
    ready(rank)
    if rank == 1:
        warm_cache()
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(3,), nprocs=3)
