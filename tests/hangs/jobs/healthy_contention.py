"""Threads that want one lock and get it in turn, a consumer that waits for a slow producer, a lock file that comes and
goes: nothing of it lasts."""

import os
import queue
import threading
import time

from mark import ready, work_path


class Cache:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.second = threading.RLock()
        self.items: queue.Queue[int] = queue.Queue(2)
        self.busy = work_path(f"cache-{os.getpid()}.lock")

    def fill(self) -> None:
        while True:
            with self.lock, self.second:
                time.sleep(0.1)
            self.items.put(1)

    def touch(self) -> None:
        while True:
            with self.lock:
                time.sleep(0.15)
            with open(self.busy, "w"):
                time.sleep(0.05)
            os.unlink(self.busy)
            time.sleep(0.01)

    def use(self) -> None:
        for step in range(1_000_000_000):
            with self.second:
                time.sleep(0.02)
            self.items.get()
            while os.path.exists(self.busy):
                time.sleep(0.01)
            if step == 3:
                ready()


def main() -> None:
    cache = Cache()
    for target in (cache.fill, cache.touch):
        threading.Thread(target=target, daemon=True).start()
    cache.use()


if __name__ == "__main__":
    main()
