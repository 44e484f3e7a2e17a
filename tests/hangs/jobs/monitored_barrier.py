"""The ranks meet in a monitored barrier; rank 1 is elsewhere."""

import time

import torch.distributed as dist
from mark import ready


def profile_memory() -> None:
    while True:
        time.sleep(60)


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 1:
        profile_memory()
    dist.monitored_barrier()


if __name__ == "__main__":
    main()
