"""Ranks of torch that come to a breakpoint: torch_breakpoint_program.py training, timeouts OTHERS, spawn FOLDER.

What is trained is trained twice in the same job, first untouched and then stopped: both must end at the same bits.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing
from leave_group import leave_group
from torch.nn.parallel import DistributedDataParallel

import breakranks

SHORT = timedelta(seconds=3)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(8, 8)
        self.stops = False

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        made = self.line(given)
        if self.stops:
            breakranks.breakpoint("all")
        return torch.relu(made)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(3)])
        self.stops = False

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        given = self.layers[0](given)
        if self.stops:
            breakranks.breakpoint("all")
        given = self.layers[1](given)
        given = self.layers[2](given)
        return torch.relu(given)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def data(step: int) -> torch.Tensor:
    torch.manual_seed(step * 10 + dist.get_rank())
    return torch.randn(4, 8)


def report(untouched: list[float], stopped: list[float]) -> None:
    assert len(set(untouched)) == len(untouched)  # it has learned something
    same = [one.hex() for one in untouched] == [one.hex() for one in stopped]
    breakranks.print("RESULT", "same" if same else f"differs: {untouched} {stopped}")


def ddp() -> None:
    def train(stops: bool) -> list[float]:
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(4):
            x = data(step)
            loss = model(x).pow(2).mean()
            if stops and step == 1:
                breakranks.breakpoint()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    report(train(False), train(True))


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard  # takes a second, which the other modes need not

    def train(stops: bool) -> list[float]:
        model = net()
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(4):
            x = data(step)
            model.layers[0].stops = stops and step == 2
            model.stops = stops and step == 3
            loss = model(x).pow(2).mean()
            if stops and step == 1:
                breakranks.breakpoint()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    report(train(False), train(True))


def timeouts_now() -> str:
    """The timeouts in seconds of all groups of this rank."""
    found = []
    for group in dist.distributed_c10d._world.pg_map:
        backend = group._get_backend(torch.device("cpu"))
        found.append(getattr(backend, "wrapped_pg", backend).options._timeout.total_seconds())
    return ",".join(f"{one:g}" for one in found)


def timeouts_settled() -> str:
    """The same, once none is of a day any more, or after a few seconds."""
    until = time.monotonic() + 60
    while "86400" in timeouts_now() and time.monotonic() < until:
        time.sleep(0.1)
    return timeouts_now()


def timeouts() -> None:
    """Rank 0 stops for longer than any group would wait. With ``run``, rank 1 waits for it in a collective of a group
    that was there before, rank 2 in the making of a group that was not; with ``hold`` they come there afterwards."""
    with open(f"ready.{os.environ['RANK']}", "w"):
        pass
    while not os.path.exists("begin"):
        time.sleep(0.02)  # who starts much later than the others is not late for the group
    dist.init_process_group("gloo", timeout=SHORT)
    rank = dist.get_rank()
    before = dist.new_group([0, 1], timeout=SHORT)
    if dist.get_world_size() > 2:
        dist.new_group([2], timeout=SHORT)  # torch names the group below by how many groups a member has
    ones = torch.ones(1)
    dist.barrier()
    breakranks.breakpoint(others=sys.argv[2])
    began = time.monotonic()
    if rank in (0, 1):
        dist.all_reduce(ones, group=before)
    if rank in (0, 2) and dist.get_world_size() > 2:
        made = dist.new_group([0, 2], timeout=2 * SHORT, use_local_synchronization=True)
        dist.all_reduce(ones, group=made)
    waited = "waited" if time.monotonic() - began > 2 * SHORT.total_seconds() else "met"
    dist.barrier()
    first = timeouts_settled()
    dist.barrier()
    breakranks.breakpoint("all")
    dist.barrier()
    breakranks.print(f"RESULT {ones.item():g} {waited} {first} {timeouts_settled()}")
    dist.destroy_process_group()


def spawned(index: int, folder: str, world: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=world)
    mine = torch.full((2, 3), float(index))
    breakranks.breakpoint(1)
    dist.all_reduce(mine)
    breakranks.print("RESULT", mine.sum().item())
    dist.destroy_process_group()


def spawn() -> None:
    torch.multiprocessing.spawn(spawned, (sys.argv[2], 2), nprocs=2)


def training() -> None:
    dist.init_process_group("gloo")
    ddp()
    fsdp()
    leave_group()


MODES: dict[str, Callable[[], None]] = {"training": training, "timeouts": timeouts, "spawn": spawn}

if __name__ == "__main__":
    torch.set_num_threads(1)
    MODES[sys.argv[1]]()
