"""Rank 2 runs an event loop that waits for an answer nobody will give."""

import asyncio

import torch
import torch.distributed as dist
from mark import ready


async def ask_scheduler() -> None:
    await asyncio.get_running_loop().create_future()


def request_lease() -> None:
    asyncio.run(ask_scheduler())


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 2:
        request_lease()
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
