"""Thousands of small all_reduces a second."""

import torch
import torch.distributed as dist
from mark import ready


def train_step(weights: torch.Tensor) -> None:
    dist.all_reduce(weights)
    weights /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    weights = torch.ones(16)
    for step in range(1_000_000_000):
        train_step(weights)
        if step == 100:
            ready()


if __name__ == "__main__":
    main()
