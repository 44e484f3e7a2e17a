"""A breakpoint on the way of one rank, with the default `ranks=0`: rank 2 is held for rank 0, which waits for it."""

import torch
import torch.distributed as dist
from mark import ready

import breakranks


def check_gradients(gradients: torch.Tensor) -> None:
    if dist.get_rank() == 2:
        breakranks.breakpoint()


def main() -> None:
    dist.init_process_group("gloo")
    gradients = torch.ones(8)
    dist.all_reduce(gradients)
    ready()
    check_gradients(gradients)
    dist.all_reduce(gradients)


if __name__ == "__main__":
    main()
