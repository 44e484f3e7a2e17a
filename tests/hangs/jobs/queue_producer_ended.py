"""Rank 0 waits for batches of a thread that has died of an error, and of which it still has the object."""

import queue
import threading

from mark import rank_of_this_process, ready


class Batches:
    def __init__(self) -> None:
        self.items: queue.Queue[int] = queue.Queue(8)
        self.reader = threading.Thread(target=self.read, name="reader", daemon=True)
        self.reader.start()

    def read(self) -> None:
        raise SystemExit  # as an exception in a thread does, without the noise

    def next_batch(self) -> int:
        return self.items.get()


def work() -> None:
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def main() -> None:
    if rank_of_this_process() == "0":
        batches = Batches()
        batches.reader.join()
        ready()
        batches.next_batch()
    ready()
    work()


if __name__ == "__main__":
    main()
