"""Ranks of torch.multiprocessing.spawn, each with a worker of its own that was spawned as well."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time


def ready(folder: str, name: str, text: str) -> None:
    path = os.path.join(folder, f"{name}.{os.getpid()}")
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def worker(folder: str) -> None:
    ready(folder, "worker", "")
    time.sleep(600)


def rank(number: int, folder: str) -> None:
    multiprocessing.get_context("spawn").Process(target=worker, args=(folder,), daemon=True).start()
    ready(folder, "rank", str(number))
    time.sleep(600)


if __name__ == "__main__":
    import torch.multiprocessing  # here: the workers need not

    torch.multiprocessing.spawn(rank, (sys.argv[1],), nprocs=int(sys.argv[2]))
