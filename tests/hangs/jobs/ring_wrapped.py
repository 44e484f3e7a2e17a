"""The flight recorder holds 16 entries, and has forgotten most of a long run in which the pairs did not do equally
many steps. Rank 3 is then missing from the all_reduce of all."""

import os
import time

os.environ["TORCH_FR_BUFFER_SIZE"] = "16"

import torch
import torch.distributed as dist
from mark import ready, work_path


def refine(pair: dist.ProcessGroup, rounds: int) -> torch.Tensor:
    value = torch.ones(8)
    for _ in range(rounds):
        dist.all_reduce(value, group=pair)
    return value / value.sum()


def wait_for_labels(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.5)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1], group_desc="pair"), dist.new_group([2, 3], group_desc="pair")]
    for step in range(12):
        value = refine(pairs[rank // 2], rounds=3 if rank < 2 else 9)
        if step == 10:
            ready()
            if rank == 3:
                wait_for_labels(work_path("labels.json"))
        dist.all_reduce(value)


if __name__ == "__main__":
    main()
