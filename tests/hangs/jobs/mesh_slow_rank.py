"""Tensor parallel by four, data parallel by two. Rank 5 opens a shard that never opens, so it is not in the forward
pass with its row, and the other row waits for that row's gradients."""

import torch
import torch.distributed as dist
from mark import ready, work_path
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def load_batch(step: int) -> torch.Tensor:
    if step == 4:
        ready()
        if dist.get_rank() == 5:
            with open(work_path("shard-0004")) as shard:
                return torch.tensor([float(line) for line in shard])
    return torch.ones(32)


def forward(batch: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    for _ in range(2):
        dist.all_reduce(batch, group=mesh.get_group("tp"))
    return batch


def reduce_gradients(gradients: torch.Tensor, mesh: DeviceMesh) -> None:
    dist.all_reduce(gradients, group=mesh.get_group("dp"))


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    for step in range(10):
        reduce_gradients(forward(load_batch(step), mesh), mesh)


if __name__ == "__main__":
    main()
