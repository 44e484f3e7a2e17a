"""A loop that gets on, beside everything that waits for ever and may: idle threads, an idle pool, a quiet
child process, a lock that a thread holds and another wants."""

import multiprocessing
import queue
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from mark import ready


def consume(items: queue.Queue) -> None:
    while True:
        items.get()


def start_background() -> list[object]:
    lock = threading.Lock()
    lock.acquire()
    for target, arguments in ((consume, (queue.Queue(),)), (lock.acquire, ())):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    executor = ThreadPoolExecutor(2)
    executor.submit(int).result()
    pool = multiprocessing.get_context("fork").Pool(1)
    return [executor, pool, subprocess.Popen(["sleep", "100000"])]


def main() -> None:
    dist.init_process_group("gloo")
    background = start_background()
    for step in range(1_000_000_000):
        dist.all_reduce(torch.randn(64, 64) @ torch.randn(64, 64))
        if step == 100:
            ready()
    del background


if __name__ == "__main__":
    main()
