"""Rank 0 validates alone with a model that is sharded over all ranks; the others wait for it in a barrier."""

import torch
import torch.distributed as dist
from mark import ready
from torch.distributed.fsdp import fully_shard


def validate(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 16))


def main() -> None:
    dist.init_process_group("gloo")
    model = fully_shard(torch.nn.Linear(16, 16))
    ready()
    if dist.get_rank() == 0:
        validate(model)
    dist.barrier()


if __name__ == "__main__":
    main()
