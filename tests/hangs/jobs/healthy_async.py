"""Reductions overlap with the work of the next bucket; some ranks are always a few of them ahead."""

import time

import torch
import torch.distributed as dist
from mark import ready


def backward(bucket: torch.Tensor, layer: int) -> torch.Tensor:
    time.sleep(0.002 * (1 + (dist.get_rank() + layer) % 3))
    return torch.tanh(bucket @ bucket)


def train_step(buckets: list[torch.Tensor]) -> None:
    started = []
    for layer, bucket in enumerate(buckets):
        started.append(dist.all_reduce(backward(bucket, layer), async_op=True))
    for work in started:
        work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    buckets = [torch.randn(32, 32) for _ in range(6)]
    for step in range(1_000_000_000):
        train_step(buckets)
        if step == 20:
            ready()


if __name__ == "__main__":
    main()
