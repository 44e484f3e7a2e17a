"""Ranks of torch that know nothing of breakranks: attach_torch_program.py hang|train|load|backward|timeout.

A rank has ``ready.RANK`` in its folder when it is where it is to be looked at, and goes on to its end when ``end`` is
there. What is computed does not depend on how long that takes.
"""

from __future__ import annotations

import glob
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from leave_group import leave_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SHORT = timedelta(seconds=4)
STEPS = 60


def ready(what: str = "ready") -> None:
    with open(f"{what}.{os.environ['RANK']}", "w") as file:
        file.write(str(os.getpid()))


def ended() -> bool:
    return os.access("end", os.F_OK)


def say(*what: object) -> None:
    os.write(1, f"RESULT {dist.get_rank()} {' '.join(map(str, what))}\n".encode())


def everybody_ended() -> bool:
    """All ranks agree on the step after which they end."""
    vote = torch.tensor([float(ended())])
    dist.all_reduce(vote)
    return bool(vote.item())


def net(width: int = 16) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))


def hang() -> None:
    """Rank 3 does not come to the barrier, until it is told to end."""
    secret = torch.arange(3) * dist.get_rank()
    ready()
    if dist.get_rank() == 3:
        while not ended():
            time.sleep(0.05)  # late
    dist.barrier()  # barrier
    say(secret.sum().item())


def train_once(hold: Callable[[], None]) -> str:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.zeros(())
    for step in range(STEPS):
        torch.manual_seed(step * 10 + dist.get_rank())
        loss = model(torch.randn(4, 16)).pow(2).mean()  # forward
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        hold()
    return loss.item().hex()


def train() -> None:
    """The same training again and again, as long as it is looked at: every time it must end at the same bits."""
    first = train_once(lambda: None)
    ready()
    rounds, wrong = 0, 0
    while not everybody_ended():
        wrong += train_once(lambda: time.sleep(0.001)) != first
        rounds += 1
    say("wrong", wrong, "rounds", min(rounds, 1))


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)  # loads
        return torch.full((2,), float(index))


def load() -> None:
    """A loader with two workers, which are slow: the rank waits for them most of the time."""
    total = 0.0
    for number, batch in enumerate(DataLoader(Numbers(), batch_size=10, num_workers=2)):
        if number < 20:
            total += batch.sum().item()
        elif ended():
            break
        if number == 0:
            ready()
    say(total)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, given: torch.Tensor) -> torch.Tensor:
        return given * 2

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        began = time.monotonic()
        while time.monotonic() - began < 0.3:
            torch.ones(200, 200) @ torch.ones(200, 200)  # grad
        return grad * 2


def backward() -> None:
    """In the backward of a function of its own, most of the time."""
    leaf = torch.ones(3, requires_grad=True)
    turns = 0
    ready()
    while not ended():
        leaf.grad = None
        Slow.apply(leaf).sum().backward()
        turns += 1
        assert leaf.grad is not None and leaf.grad.tolist() == [2.0, 2.0, 2.0]
    dist.barrier()
    say(min(turns, 1))


def timeout() -> None:
    """Collectives of a group that waits four seconds, and not longer."""
    ones = torch.ones(1)
    ready()
    turns = 0
    while not everybody_ended():
        dist.all_reduce(ones)
        ones.fill_(1)
        turns += 1
        time.sleep(0.01)  # turns
    dist.barrier()
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    until = time.monotonic() + 60
    while backend.options._timeout != SHORT and time.monotonic() < until:
        time.sleep(0.1)
    say(ones.item(), backend.options._timeout.total_seconds())


MODES: dict[str, Callable[[], None]] = {
    "hang": hang, "train": train, "load": load, "backward": backward, "timeout": timeout,
}  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    ready("up")
    while len(glob.glob("up.*")) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)  # who starts much later than the others is not late for the group
    dist.init_process_group("gloo", **({"timeout": SHORT} if sys.argv[1] == "timeout" else {}))
    dist.barrier()
    MODES[sys.argv[1]]()
    leave_group()
