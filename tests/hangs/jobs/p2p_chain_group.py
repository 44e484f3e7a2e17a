"""Rank 0 waits for the activations of rank 1, which waits in its tensor-parallel group for rank 2, which waits
for a file."""

import os
import time

import torch
import torch.distributed as dist
from mark import ready, work_path


def receive_activations(source: int) -> torch.Tensor:
    activations = torch.empty(64)
    dist.recv(activations, src=source)
    return activations


def forward(group: dist.ProcessGroup) -> torch.Tensor:
    hidden = torch.ones(64)
    dist.all_reduce(hidden, group=group)
    return hidden


def load_adapter(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.5)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor_parallel = dist.new_group([1, 2], group_desc="tensor_parallel")
    dist.barrier()
    ready()
    if rank == 2:
        load_adapter(work_path("adapter.bin"))
    if rank == 0:
        receive_activations(source=1)
    else:
        hidden = forward(tensor_parallel)
        if rank == 1:
            dist.send(hidden, dst=0)
    dist.barrier()


if __name__ == "__main__":
    main()
