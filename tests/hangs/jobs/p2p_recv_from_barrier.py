"""Rank 0 wants the results of rank 1, which has gone on to the barrier without sending them."""

import torch
import torch.distributed as dist
from mark import ready


def collect_results() -> torch.Tensor:
    results = torch.empty(32)
    dist.recv(results, src=1)
    return results


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    ready()
    if dist.get_rank() == 0:
        collect_results()
    dist.barrier()


if __name__ == "__main__":
    main()
