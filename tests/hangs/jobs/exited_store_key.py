"""Rank 1 leaves early and cleanly; the others wait for the key that it would have set in the store."""

import sys

import torch.distributed as dist
from mark import ready


def publish(store: dist.Store, rank: int) -> None:
    store.set(f"checkpoint/{rank}", "written")


def wait_for_peers(store: dist.Store, world: int) -> None:
    for rank in range(world):
        store.get(f"checkpoint/{rank}")


def main() -> None:
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    ready()
    if dist.get_rank() == 1:
        print("nothing to save on this rank")
        sys.exit(0)
    publish(store, dist.get_rank())
    wait_for_peers(store, dist.get_world_size())


if __name__ == "__main__":
    main()
