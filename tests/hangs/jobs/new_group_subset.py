"""`new_group` must be called by every rank, also by those that are not in the group. Rank 2 was left out."""

import os

import torch
import torch.distributed as dist
from mark import ready

# What torch before 2.1 always did, and later versions do when asked: meet at the end of `new_group`.
os.environ["TORCH_DIST_INIT_BARRIER"] = "1"


def make_tensor_parallel_group(rank: int) -> None:
    if rank in (0, 1):
        dist.new_group([0, 1])


def reduce_gradients() -> None:
    dist.all_reduce(torch.ones(8))


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    make_tensor_parallel_group(dist.get_rank())
    reduce_gradients()


if __name__ == "__main__":
    main()
