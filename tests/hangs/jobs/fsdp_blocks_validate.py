"""Three sharded blocks, trained for two steps; then rank 0 alone validates, and the others report their loss."""

import torch
import torch.distributed as dist
from mark import ready
from torch.distributed.fsdp import fully_shard


def build_model() -> torch.nn.Module:
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def train_step(model: torch.nn.Module) -> torch.Tensor:
    loss = model(torch.ones(2, 16)).sum()
    loss.backward()
    return loss.detach()


def validate(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model(torch.zeros(2, 16))


def report(loss: torch.Tensor) -> None:
    dist.all_reduce(loss)


def main() -> None:
    dist.init_process_group("gloo")
    model = build_model()
    for step in range(10):
        loss = train_step(model)
        if step == 1:
            ready()
            if dist.get_rank() == 0:
                validate(model)
        report(loss)


if __name__ == "__main__":
    main()
