"""Rank 2 tells everybody in a broadcast that its loss is not a number, in the background, and nobody else takes part.
All ranks stand in the barrier of the same line, and rank 2's is one number further."""

import torch
import torch.distributed as dist
from mark import ready


def train_step(step: int) -> torch.Tensor:
    loss = torch.tensor(float("nan") if step == 3 and dist.get_rank() == 2 else 1.0)
    if loss.isnan():
        dist.broadcast(torch.ones(1), src=dist.get_rank(), async_op=True)
    return loss


def end_step() -> None:
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    for step in range(10):
        train_step(step)
        if step == 3:
            ready()
        end_step()


if __name__ == "__main__":
    main()
