"""Rank 2 finds nothing to do and exits before the process group exists; the others wait for it there."""

import sys

import torch.distributed as dist
from mark import rank_of_this_process, ready


def shards_of(rank: int) -> list[str]:
    return [f"shard-{rank:04}"] if rank < 2 else []


def main() -> None:
    rank = int(rank_of_this_process())
    ready()
    if not shards_of(rank):
        print(f"rank {rank}: no shards, leaving")
        sys.exit(0)
    dist.init_process_group("gloo")
    dist.barrier()


if __name__ == "__main__":
    main()
