"""Rank 1 asks a feature server that took the connection and never answers."""

import urllib.request

import torch
import torch.distributed as dist
from mark import ready, work_path


def fetch_features() -> bytes:
    with open(work_path("address")) as file:
        return urllib.request.urlopen(f"http://{file.read()}/features").read()


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 1:
        fetch_features()
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
