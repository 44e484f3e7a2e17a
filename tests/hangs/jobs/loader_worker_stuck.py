"""A data-loader worker of rank 1 waits for a sample that never comes; the others wait for rank 1."""

import socket

import torch
import torch.distributed as dist
from mark import ready
from torch.utils.data import DataLoader, Dataset


class Shards(Dataset):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 20 and dist.get_rank() == 1:
            ready("helper")
            self.fetch_remote(index)
        return torch.ones(8)

    def fetch_remote(self, index: int) -> bytes:
        here, self.there = socket.socketpair()
        return here.recv(4096)


def train(loader: DataLoader) -> None:
    for step, batch in enumerate(loader):
        if step == 5:
            ready()
        dist.all_reduce(batch.sum())


def main() -> None:
    dist.init_process_group("gloo")
    # One worker, asked for two batches ahead: rank 1 gets as far as step 4.
    loader = DataLoader(Shards(), batch_size=4, num_workers=1)
    if dist.get_rank() == 1:
        ready()
    train(loader)


if __name__ == "__main__":
    main()
