"""One rank is late with its data, the others wait for it in an all_reduce. Usage: straggler.py RANK"""

import sys
import time

import torch
import torch.distributed as dist
from rank import join, ready


def load_batch() -> torch.Tensor:
    time.sleep(100_000)
    return torch.ones(1000)


def train(rank: int, late: int) -> None:
    for step in range(4):
        if step == 3:
            ready(rank)
        batch = load_batch() if rank == late and step == 3 else torch.ones(1000)
        dist.all_reduce(batch)


train(join(), late=int(sys.argv[1]))
