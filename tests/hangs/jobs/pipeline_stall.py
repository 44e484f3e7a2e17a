"""A pipeline of three stages: each waits for the one before it, and the first cannot read its input."""

import torch
import torch.distributed as dist
from mark import ready, work_path


def read_shard() -> torch.Tensor:
    with open(work_path("feed"), "rb") as shard:
        return torch.tensor(list(shard.read(8)), dtype=torch.float32)


def receive_activations(rank: int) -> torch.Tensor:
    activations = torch.empty(8)
    dist.recv(activations, src=rank - 1)
    return activations


def run_stage(rank: int) -> None:
    activations = read_shard() if rank == 0 else receive_activations(rank)
    if rank < dist.get_world_size() - 1:
        dist.send(activations, dst=rank + 1)


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    ready()
    run_stage(dist.get_rank())


if __name__ == "__main__":
    main()
