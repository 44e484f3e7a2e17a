"""A thread of rank 1 calls a C library through ctypes.PyDLL, which keeps the GIL, and the call blocks."""

import ctypes
import threading
import time

import torch
import torch.distributed as dist
from mark import ready


def read_sensor() -> None:
    ctypes.PyDLL(None).sleep(100_000)


def train_step() -> None:
    time.sleep(0.2)
    dist.all_reduce(torch.ones(8))


def main() -> None:
    dist.init_process_group("gloo")
    train_step()
    ready()
    if dist.get_rank() == 1:
        threading.Thread(target=read_sensor, name="sensor", daemon=True).start()
    while True:
        train_step()


if __name__ == "__main__":
    main()
