"""Rank 2 calls its own C code through ctypes.PyDLL: a loop that does not end, with the GIL in its hand."""

import ctypes

import torch
import torch.distributed as dist
from mark import ready, work_path


def solve_assignment() -> None:
    ctypes.PyDLL(work_path("libsolver.so")).solve()


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 2:
        solve_assignment()
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
