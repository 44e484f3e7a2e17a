"""Rank 1 got a hundred times the data: it works, and the others wait in the barrier."""

import torch.distributed as dist
from mark import ready


def tokens_of(number: int) -> list[str]:
    text = "the quick brown fox jumps over the lazy dog " * 20
    words = text.split()
    words.sort(key=len)
    return words[number % 7 :]


def merge(counts: dict[str, int], found: dict[str, int]) -> None:
    for word, count in found.items():
        counts[word] = counts.get(word, 0) + count


def count_words(documents: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number in range(documents):
        tokens = tokens_of(number)
        found = {}
        for word in tokens:
            found[word] = found.get(word, 0) + 1
        longest = max(found, key=len)
        found.pop(longest)
        merge(counts, found)
    return counts


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    count_words(10_000_000 if dist.get_rank() == 1 else 100)
    dist.barrier()


if __name__ == "__main__":
    main()
