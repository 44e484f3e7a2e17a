"""DDP with uneven inputs and no `join()`: rank 1 has one batch less, and is in the epoch's barrier while the
others are in the backward pass."""

import torch
import torch.distributed as dist
from mark import ready
from torch.nn.parallel import DistributedDataParallel


def train_epoch(model: DistributedDataParallel, batches: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in range(batches):
        if batch == 3:
            ready()
        loss = model(torch.randn(4, 16)).sum()
        loss.backward()
        optimizer.step()


def end_of_epoch() -> None:
    ready()
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    train_epoch(model, batches=3 if dist.get_rank() == 1 else 4)
    end_of_epoch()


if __name__ == "__main__":
    main()
