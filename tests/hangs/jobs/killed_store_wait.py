"""Rank 2 was killed (-9, as the out-of-memory killer does); the others wait for its key in the store."""

import torch.distributed as dist
from mark import ready


def report_done(store: dist.Store, rank: int) -> None:
    store.set(f"epoch0/{rank}", "done")


def wait_for_epoch(store: dist.Store, world: int) -> None:
    store.wait([f"epoch0/{rank}" for rank in range(world)])


def train_epoch(rank: int) -> None:
    ready()
    while rank == 2:
        pass


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    train_epoch(rank)
    report_done(store, rank)
    wait_for_epoch(store, world)


if __name__ == "__main__":
    main()
