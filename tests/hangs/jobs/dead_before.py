"""Rank 2 was killed after some steps, as the out-of-memory killer does; the others make a new group with it."""

import os
import signal

import torch
import torch.distributed as dist
from mark import ready


def warm_up(steps: int) -> None:
    for _ in range(steps):
        dist.all_reduce(torch.ones(8))


def load_teacher() -> None:
    ready()
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def make_evaluation_group() -> dist.ProcessGroup:
    return dist.new_group([0, 1, 2], group_desc="evaluation")


def main() -> None:
    dist.init_process_group("gloo")
    warm_up(steps=5)
    load_teacher()
    make_evaluation_group()


if __name__ == "__main__":
    main()
