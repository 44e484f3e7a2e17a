"""Rank 2 is still before `init_process_group`, where the others wait for it."""

import time

import torch.distributed as dist
from mark import rank_of_this_process, ready


def download_weights() -> None:
    time.sleep(100_000)


def main() -> None:
    ready()
    if rank_of_this_process() == "2":
        download_weights()
    dist.init_process_group("gloo")


if __name__ == "__main__":
    main()
