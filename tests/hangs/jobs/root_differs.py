"""Rank 3 takes itself for the one that collects, the others take rank 0."""

import torch
import torch.distributed as dist
from mark import ready


def collect(scores: torch.Tensor, keeper: int) -> None:
    mine = dist.get_rank() == keeper
    parts = [torch.empty_like(scores) for _ in range(dist.get_world_size())] if mine else None
    dist.gather(scores, parts, dst=keeper)


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    ready()
    collect(torch.ones(200_000), dist.get_rank() if dist.get_rank() == 3 else 0)
    dist.barrier()


if __name__ == "__main__":
    main()
