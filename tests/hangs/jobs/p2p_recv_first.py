"""Neighbours swap halos, and everybody receives before it sends."""

import torch
import torch.distributed as dist
from mark import ready


def exchange_halos(mine: torch.Tensor) -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    halo = torch.empty_like(mine)
    dist.recv(halo, src=(rank - 1) % world)
    dist.send(mine, dst=(rank + 1) % world)
    return halo


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    ready()
    exchange_halos(torch.ones(256))


if __name__ == "__main__":
    main()
