"""Rank 1's main thread wants a lock that a thread of its holds while that waits for an answer."""

import socket
import threading

from mark import rank_of_this_process, ready


class Features:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.here, self.there = socket.socketpair()
        self.holds = threading.Event()

    def refresh(self) -> bytes:
        with self.lock:
            self.holds.set()
            return self.here.recv(4096)

    def lookup(self, key: int) -> int:
        with self.lock:
            return key


def work() -> None:
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def main() -> None:
    features = Features()
    if rank_of_this_process() == "1":
        threading.Thread(target=features.refresh, name="refresher", daemon=True).start()
        features.holds.wait()
        ready()
        features.lookup(5)
    ready()
    work()


if __name__ == "__main__":
    main()
