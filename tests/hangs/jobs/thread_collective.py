"""Metrics are reduced in a background thread, which the main thread joins; rank 1 never starts its own."""

import threading
import time

import torch
import torch.distributed as dist
from mark import ready


def reduce_metrics() -> None:
    dist.all_reduce(torch.ones(8))


def drain_profiler() -> None:
    time.sleep(100_000)


def end_of_step() -> None:
    reducer = threading.Thread(target=reduce_metrics, name="reducer")
    reducer.start()
    reducer.join()


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 1:
        drain_profiler()
    end_of_step()


if __name__ == "__main__":
    main()
