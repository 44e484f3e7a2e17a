"""torch's own breakpoint: rank 1 is in pdb, and torch has put the others into a barrier."""

import torch
import torch.distributed as dist
from mark import ready


def optimizer_step(gradients: torch.Tensor) -> None:
    ready()
    dist.breakpoint(rank=1)
    gradients.zero_()


def main() -> None:
    dist.init_process_group("gloo")
    gradients = torch.ones(8)
    dist.all_reduce(gradients)
    optimizer_step(gradients)


if __name__ == "__main__":
    main()
