"""Rank 2 takes a lock that is not re-entrant while it has it already."""

import threading

import torch
import torch.distributed as dist
from mark import ready


class FeatureCache:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[int, torch.Tensor] = {}

    def lookup(self, key: int) -> torch.Tensor:
        with self.lock:
            if key not in self.entries:
                self.refresh(key)
            return self.entries[key]

    def refresh(self, key: int) -> None:
        with self.lock:
            self.entries[key] = torch.ones(4)


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 2:
        FeatureCache().lookup(5)
    dist.all_reduce(torch.ones(4))


if __name__ == "__main__":
    main()
