"""No workers: rank 2 itself opens a shard that never opens (a pipe nobody writes, for a dead mount)."""

import torch
import torch.distributed as dist
from mark import ready, work_path
from torch.utils.data import DataLoader, Dataset


class Shards(Dataset):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.read_shard(index))

    def read_shard(self, index: int) -> list[float]:
        if index == 20 and dist.get_rank() == 2:
            ready()
            with open(work_path("shard-0020")) as shard:
                return [float(line) for line in shard]
        return [1.0]


def train(loader: DataLoader) -> None:
    for step, batch in enumerate(loader):
        if step == 5:
            ready()
        dist.all_reduce(batch.sum())


def main() -> None:
    dist.init_process_group("gloo")
    train(DataLoader(Shards(), batch_size=4))


if __name__ == "__main__":
    main()
