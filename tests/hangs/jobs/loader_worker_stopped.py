"""A data-loader worker of rank 0 is stopped (SIGSTOP); everybody waits for its batch."""

import torch
import torch.distributed as dist
from mark import ready
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 400 and dist.get_rank() == 0:
            ready("helper")
        return torch.ones(8)


def train(loader: DataLoader) -> None:
    for step, batch in enumerate(loader):
        dist.all_reduce(batch.sum())
        if step == 50:
            ready()


def main() -> None:
    dist.init_process_group("gloo")
    train(DataLoader(Samples(), batch_size=4, num_workers=1))


if __name__ == "__main__":
    main()
