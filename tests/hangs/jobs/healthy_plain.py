"""Plain Python workers, each with its own share of the work, and nothing between them."""

from mark import rank_of_this_process, ready


def collatz_length(number: int) -> int:
    length = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        length += 1
    return length


def longest(start: int) -> int:
    best = 0
    for number in range(start, start + 100_000_000):
        best = max(best, collatz_length(number))
    return best


if __name__ == "__main__":
    ready()
    longest(1 + 100_000_000 * int(rank_of_this_process()))
