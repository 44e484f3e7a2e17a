"""A pipeline of three stages: microbatches go down it, and their gradients come back, for ever."""

import time

import torch
import torch.distributed as dist
from mark import ready


def compute(values: torch.Tensor) -> torch.Tensor:
    time.sleep(0.005)
    return torch.tanh(values)


def run_microbatch(stage: int, last: int) -> None:
    values = torch.ones(64)
    if stage > 0:
        dist.recv(values, src=stage - 1)
    values = compute(values)
    if stage < last:
        dist.send(values, dst=stage + 1)
        dist.recv(values, src=stage + 1)
    gradients = compute(values)
    if stage > 0:
        dist.send(gradients, dst=stage - 1)


def main() -> None:
    dist.init_process_group("gloo")
    stage, last = dist.get_rank(), dist.get_world_size() - 1
    for step in range(1_000_000_000):
        run_microbatch(stage, last)
        if step == 20:
            ready()


if __name__ == "__main__":
    main()
