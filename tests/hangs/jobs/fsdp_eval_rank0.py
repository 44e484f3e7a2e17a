"""Rank 0 alone gathers the sharded weights to save them; the others wait for it in a barrier."""

import torch
import torch.distributed as dist
from mark import ready, work_path
from torch.distributed.fsdp import fully_shard


def build_model() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def save_weights(model: torch.nn.Module, path: str) -> None:
    weights = {name: shard.full_tensor() for name, shard in model.state_dict().items()}
    torch.save(weights, path)


def main() -> None:
    dist.init_process_group("gloo")
    model = build_model()
    model(torch.ones(2, 16)).sum().backward()
    ready()
    if dist.get_rank() == 0:
        save_weights(model, work_path("weights.pt"))
    dist.barrier()


if __name__ == "__main__":
    main()
