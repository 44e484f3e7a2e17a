"""Four ranks train a sharded model and stop in the third step.

torchrun --nproc-per-node 4 examples/fsdp_breakpoint.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import breakranks


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, step: int) -> float:
    loss = model(batch).pow(2).mean()
    breakranks.breakpoint(when=step == 2)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(16) for _ in range(3)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(5):
        loss = train_step(model, optimizer, torch.randn(8, 16, generator=generator), step)
    breakranks.print(f"loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
