"""A breakpoint of ours: rank 1 is at its prompt, and holds the others at the same line. Nobody has come yet."""

import torch
import torch.distributed as dist
from mark import ready

import breakranks


def optimizer_step(gradients: torch.Tensor) -> None:
    ready()
    breakranks.breakpoint(1)
    gradients.zero_()


def main() -> None:
    dist.init_process_group("gloo")
    gradients = torch.ones(8)
    dist.all_reduce(gradients)
    optimizer_step(gradients)


if __name__ == "__main__":
    main()
