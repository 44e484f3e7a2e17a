"""Rank 0 evaluates after five steps and calls a barrier; nobody told the others, who go on training."""

import torch
import torch.distributed as dist
from mark import ready


def evaluate() -> None:
    dist.barrier()


def train_step() -> None:
    dist.all_reduce(torch.ones(512))


def main() -> None:
    dist.init_process_group("gloo")
    for step in range(10):
        if step == 5:
            ready()
            if dist.get_rank() == 0:
                evaluate()
        train_step()


if __name__ == "__main__":
    main()
