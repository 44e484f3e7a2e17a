"""A healthy loop, and rank 1 is stopped (SIGSTOP: a debugger that died, a batch system that suspends)."""

import torch
import torch.distributed as dist
from mark import ready


def train_step() -> None:
    dist.all_reduce(torch.ones(64))


def main() -> None:
    dist.init_process_group("gloo")
    for step in range(10_000_000):
        train_step()
        if step == 100:
            ready()


if __name__ == "__main__":
    main()
