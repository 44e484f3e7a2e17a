"""A loop with data-loader workers, real gradients and a checkpoint every few steps."""

import torch
import torch.distributed as dist
from mark import ready, work_path
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(16) + index % 10


def save_checkpoint(model: torch.nn.Module) -> None:
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), work_path("last.pt"))
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step, batch in enumerate(DataLoader(Digits(), batch_size=8, num_workers=1)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if step % 10 == 0:
            save_checkpoint(model)
        if step == 20:
            ready()


if __name__ == "__main__":
    main()
