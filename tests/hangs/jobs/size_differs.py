"""Rank 2's batch was cut short, and so was its tensor of activations. The ring of all_reduce gives rank 2 all that it
asks for; it goes on to the next all_reduce, of the same line, while the others still want more in this one."""

import torch
import torch.distributed as dist
from mark import ready

# Gloo cuts a tensor into segments of at most a megabyte: twelve here, eight there, all of one size.
FULL, SHORT = 3 * 2**20, 2 * 2**20


def next_batch(step: int) -> torch.Tensor:
    return torch.ones(SHORT if step == 2 and dist.get_rank() == 2 else FULL)


def train(steps: int) -> None:
    for step in range(steps):
        activations = next_batch(step)
        if step == 2:
            ready()
        dist.all_reduce(activations)


def main() -> None:
    dist.init_process_group("gloo")
    train(steps=5)


if __name__ == "__main__":
    main()
