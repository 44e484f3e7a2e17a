"""The older FSDP: rank 0 alone runs the sharded model to log an example; the others are in the epoch's barrier."""

import torch
import torch.distributed as dist
from mark import ready
from torch.distributed.fsdp import FullyShardedDataParallel


def log_example(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model(torch.zeros(2, 16))


def main() -> None:
    dist.init_process_group("gloo")
    blocks = [FullyShardedDataParallel(torch.nn.Linear(16, 16), device_id=torch.device("cpu")) for _ in range(2)]
    model = FullyShardedDataParallel(torch.nn.Sequential(*blocks), device_id=torch.device("cpu"))
    model(torch.ones(2, 16)).sum().backward()
    ready()
    if dist.get_rank() == 0:
        log_example(model)
    dist.barrier()


if __name__ == "__main__":
    main()
