"""DDP with three buckets: rank 3 has a batch less than the others, and gathers the scores of its validation."""

import torch
import torch.distributed as dist
from mark import ready
from torch.nn.parallel import DistributedDataParallel


def build_model() -> DistributedDataParallel:
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    return DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.03)


def train_epoch(model: DistributedDataParallel, batches: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in range(batches):
        loss = model(torch.randn(4, 64)).sum()
        if batch == 3:
            ready()
        loss.backward()
        optimizer.step()


def validate(score: torch.Tensor) -> list[torch.Tensor]:
    scores = [torch.empty_like(score) for _ in range(dist.get_world_size())]
    dist.all_gather(scores, score)
    return scores


def main() -> None:
    dist.init_process_group("gloo")
    short = dist.get_rank() == 3
    train_epoch(build_model(), batches=3 if short else 4)
    if short:
        ready()
    validate(torch.ones(1))


if __name__ == "__main__":
    main()
