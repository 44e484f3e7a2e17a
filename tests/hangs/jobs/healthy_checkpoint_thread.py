"""Checkpoints are written by a thread, slowly on rank 0; the others' threads wait for it, and training goes on."""

import threading
import time

import torch
import torch.distributed as dist
from mark import ready


def checkpoint(group: dist.ProcessGroup) -> None:
    while True:
        if dist.get_rank() == 0:
            time.sleep(20)
        dist.barrier(group=group)


def train_step(weights: torch.Tensor) -> None:
    dist.all_reduce(weights)
    time.sleep(0.15)


def main() -> None:
    dist.init_process_group("gloo")
    group = dist.new_group(group_desc="checkpoint")
    threading.Thread(target=checkpoint, args=(group,), name="writer", daemon=True).start()
    for step in range(1_000_000_000):
        train_step(torch.ones(4))
        if step == 20:
            ready()


if __name__ == "__main__":
    main()
