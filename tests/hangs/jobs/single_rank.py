"""One rank, on its own: the thread that should fill its queue has died of an error."""

import queue
import threading

from mark import ready


def produce(batches: queue.Queue) -> None:
    batches.put([1, 2, 3])
    raise KeyError("image_id")


def consume(batches: queue.Queue) -> None:
    while True:
        batches.get()
        ready()


def main() -> None:
    batches: queue.Queue[list[int]] = queue.Queue()
    threading.Thread(target=produce, args=(batches,), name="producer").start()
    consume(batches)


if __name__ == "__main__":
    main()
