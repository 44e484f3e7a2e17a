"""Two objects of rank 0 lock themselves and then each other; their locks have no name but the attribute's."""

import threading

from mark import rank_of_this_process, ready

both_hold_one = threading.Barrier(2)


class Account:
    def __init__(self, other: "Account | None" = None) -> None:
        self.guard = threading.Lock()
        self.other = other

    def transfer(self) -> None:
        self.guard.acquire()
        both_hold_one.wait()
        self.settle(self.other)
        self.guard.release()

    def merge(self) -> None:
        with self.guard:
            both_hold_one.wait()
            self.settle(self.other)

    def settle(self, other: "Account") -> None:
        with other.guard:
            pass


def work() -> None:
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def main() -> None:
    if rank_of_this_process() == "0":
        weights = Account()
        metrics = Account(weights)
        weights.other = metrics
        threading.Thread(target=metrics.merge, name="merger", daemon=True).start()
        ready()
        weights.transfer()
    ready()
    work()


if __name__ == "__main__":
    main()
