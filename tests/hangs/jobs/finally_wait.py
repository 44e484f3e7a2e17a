"""Rank 1 failed, and its `finally` waits for a thread that waits for an item it will never get."""

import queue
import threading

import torch
import torch.distributed as dist
from mark import ready


class Uploader:
    def __init__(self) -> None:
        self.items: queue.Queue[bytes | None] = queue.Queue()
        self.thread = threading.Thread(target=self.upload, name="uploader")
        self.thread.start()

    def upload(self) -> None:
        while self.items.get() is not None:
            pass

    def close(self) -> None:
        self.thread.join()


def train(uploader: Uploader) -> None:
    for step in range(10):
        if step == 3:
            ready()
            if dist.get_rank() == 1:
                raise ValueError("bad batch")
        dist.all_reduce(torch.ones(8))
    uploader.items.put(None)


def main() -> None:
    dist.init_process_group("gloo")
    uploader = Uploader()
    try:
        train(uploader)
    finally:
        uploader.close()


if __name__ == "__main__":
    main()
