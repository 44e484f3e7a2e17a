"""Somebody left `breakpoint()` in rank 0's code: it waits for a person, the others for it."""

import torch
import torch.distributed as dist
from mark import ready


def check_loss(loss: torch.Tensor) -> None:
    if loss.item() > 0.5 and dist.get_rank() == 0:
        breakpoint()  # noqa: T100
    print("checked")


def main() -> None:
    dist.init_process_group("gloo")
    loss = torch.tensor([0.9])
    dist.all_reduce(loss)
    ready()
    check_loss(loss)
    dist.all_reduce(loss)


if __name__ == "__main__":
    main()
