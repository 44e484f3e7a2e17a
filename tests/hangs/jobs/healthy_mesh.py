"""Tensor parallel by two, data parallel by two: steps of a few milliseconds, and of a second at times."""

import time

import torch
import torch.distributed as dist
from mark import ready
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def load_batch(step: int) -> torch.Tensor:
    time.sleep(1.0 if step % 50 == dist.get_rank() else 0.002)
    return torch.ones(32, 32)


def forward(batch: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    for _ in range(4):
        batch = torch.tanh(batch @ batch)
        dist.all_reduce(batch, group=mesh.get_group("tp"))
    return batch


def reduce_gradients(gradients: torch.Tensor, mesh: DeviceMesh) -> None:
    dist.all_reduce(gradients, group=mesh.get_group("dp"))


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for step in range(1_000_000_000):
        reduce_gradients(forward(load_batch(step), mesh), mesh)
        if step == 20:
            ready()


if __name__ == "__main__":
    main()
