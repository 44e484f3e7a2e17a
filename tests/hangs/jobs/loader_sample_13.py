"""One of two data-loader workers of rank 2 is stuck at sample 13; the other is through with its own."""

import time

import torch
import torch.distributed as dist
from mark import ready
from torch.utils.data import DataLoader, Dataset


class Shards(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 13 and dist.get_rank() == 2:
            self.decode(index)
        return torch.ones(8)

    def decode(self, index: int) -> None:
        ready("helper")
        time.sleep(100_000)


def train(loader: DataLoader) -> None:
    for step, batch in enumerate(loader):
        if step == 3:
            ready()
        dist.all_reduce(batch.sum())


def main() -> None:
    dist.init_process_group("gloo")
    loader = DataLoader(Shards(), batch_size=4, num_workers=2)
    if dist.get_rank() == 2:
        ready()
    train(loader)


if __name__ == "__main__":
    main()
