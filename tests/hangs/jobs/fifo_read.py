"""Rank 1 reads from a named pipe whose writer is silent; the others wait in a barrier."""

import torch.distributed as dist
from mark import ready, work_path


def read_feed() -> str:
    with open(work_path("feed")) as feed:
        return feed.readline()


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 1:
        read_feed()
    dist.barrier()


if __name__ == "__main__":
    main()
