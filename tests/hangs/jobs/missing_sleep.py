"""Rank 1 waits for its object-store quota while the others reduce their gradients."""

import time

import torch
import torch.distributed as dist
from mark import ready


def wait_for_quota() -> None:
    while True:
        time.sleep(600)


def train_step(step: int) -> None:
    if step == 3:
        ready()
        if dist.get_rank() == 1:
            wait_for_quota()
    gradients = torch.ones(1024)
    dist.all_reduce(gradients)


def main() -> None:
    dist.init_process_group("gloo")
    for step in range(10):
        train_step(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
