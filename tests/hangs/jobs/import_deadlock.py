"""Rank 0 imports a module whose import waits for a thread that waits for the import."""

import torch
import torch.distributed as dist
from mark import ready


def load_tables() -> list[int]:
    from lookup_tables import TABLES

    return TABLES


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 0:
        load_tables()
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
