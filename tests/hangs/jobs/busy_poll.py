"""Rank 1 polls a flag that nobody will set."""

import torch
import torch.distributed as dist
from mark import ready


class Prefetcher:
    filled = False

    def poll(self) -> bool:
        return self.filled


def wait_for_batch(prefetcher: Prefetcher) -> None:
    while not prefetcher.poll():
        pass


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 1:
        wait_for_batch(Prefetcher())
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
