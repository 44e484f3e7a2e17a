"""A ring of blocking sends: nobody is left to receive."""

import torch
import torch.distributed as dist
from mark import ready


def pass_to_the_right(block: torch.Tensor) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.send(block, dst=(rank + 1) % world)
    dist.recv(block, src=(rank - 1) % world)


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    ready()
    # Larger than the socket buffers: a small one would leave through them.
    pass_to_the_right(torch.ones(64 * 1024 * 1024))


if __name__ == "__main__":
    main()
