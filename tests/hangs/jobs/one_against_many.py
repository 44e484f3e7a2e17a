"""Rank 0 is in a collective that nobody else calls: the others have gone on to wait for the next trigger."""

import time

import torch
import torch.distributed as dist
from mark import ready


def wait_for_trigger() -> None:
    while True:
        time.sleep(30)


def average_validation_loss() -> None:
    dist.all_reduce(torch.ones(1))


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    ready()
    if dist.get_rank() == 0:
        average_validation_loss()
    wait_for_trigger()


if __name__ == "__main__":
    main()
