"""Stops, and has something to evaluate that does not end."""

import time

import breakranks


class Slow:
    def __repr__(self) -> str:
        while True:
            time.sleep(0.001)


def count(start: int) -> int:
    return sum(start + step for step in range(3))


slow = Slow()
breakranks.breakpoint()
first = count(1)
second = count(2)
print("RESULT", first + second)
