"""Rank 0 pauses for nine seconds between steps, as its storage asks it to; the others wait for it each time."""

import time

import torch
import torch.distributed as dist
from mark import ready


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    ready()
    while True:
        if dist.get_rank() == 0:
            time.sleep(9)
        dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
