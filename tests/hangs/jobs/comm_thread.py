"""Collectives run in a thread of their own, the main thread naps. Rank 1's thread never gets its next task."""

import queue
import threading
import time

import torch
import torch.distributed as dist
from mark import ready


def communicate(tasks: "queue.Queue[torch.Tensor]") -> None:
    while True:
        gradient = tasks.get()
        dist.all_reduce(gradient)


def main() -> None:
    dist.init_process_group("gloo")
    tasks: queue.Queue[torch.Tensor] = queue.Queue()
    threading.Thread(target=communicate, args=(tasks,), name="communicate", daemon=True).start()
    if dist.get_rank() != 1:
        tasks.put(torch.ones(8))
    ready()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
