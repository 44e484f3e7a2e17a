"""Rank 0 has three seconds more to do in every step (it also evaluates), and the others wait for it: fine."""

import time

import torch
import torch.distributed as dist
from mark import ready


def score(sample: torch.Tensor) -> float:
    return float(torch.softmax(sample, 0).max())


def evaluate(samples: torch.Tensor) -> float:
    began, total, seen = time.monotonic(), 0.0, 0
    while time.monotonic() - began < 3:
        total += score(samples[seen % len(samples)])
        seen += 1
    return total / seen


def train_step(weights: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        evaluate(weights)
    dist.all_reduce(weights)


def main() -> None:
    dist.init_process_group("gloo")
    weights = torch.randn(64, 64)
    for step in range(10_000):
        if step == 1:
            ready()
        train_step(weights)


if __name__ == "__main__":
    main()
