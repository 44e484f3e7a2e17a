"""Files are visited in step, with a barrier after each; rank 1's list is shorter by one, and it is at the sum."""

import torch
import torch.distributed as dist
from mark import ready


def visit(files: list[str]) -> int:
    for index, _ in enumerate(files):
        if index == 5:
            ready()
        dist.barrier()
    return len(files)


def count_all(mine: int) -> int:
    ready()
    total = torch.tensor([mine])
    dist.all_reduce(total)
    return int(total)


def main() -> None:
    dist.init_process_group("gloo")
    files = [f"part-{index}" for index in range(5 if dist.get_rank() == 1 else 6)]
    count_all(visit(files))


if __name__ == "__main__":
    main()
