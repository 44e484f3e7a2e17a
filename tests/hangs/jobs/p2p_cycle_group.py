"""Rank 0 waits for the activations of rank 1, which waits in its tensor-parallel group for rank 2, which waits
for the mask that rank 0 sends after it has the activations."""

import torch
import torch.distributed as dist
from mark import ready


def receive_activations() -> torch.Tensor:
    activations = torch.empty(64)
    dist.recv(activations, src=1)
    return activations


def receive_mask() -> torch.Tensor:
    mask = torch.empty(64)
    dist.recv(mask, src=0)
    return mask


def forward(group: dist.ProcessGroup) -> torch.Tensor:
    hidden = torch.ones(64)
    dist.all_reduce(hidden, group=group)
    return hidden


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor_parallel = dist.new_group([1, 2], group_desc="tensor_parallel")
    dist.barrier()
    ready()
    if rank == 0:
        mask = receive_activations() > 0
        dist.send(mask.float(), dst=2)
        return
    if rank == 2:
        receive_mask()
    hidden = forward(tensor_parallel)
    if rank == 1:
        dist.send(hidden, dst=0)


if __name__ == "__main__":
    main()
