"""Rank 1 got a hundred times the work; it is busy and gets on, the others wait in a barrier."""

import torch.distributed as dist
from mark import ready


def tokens_of(document: int) -> list[str]:
    words = []
    for position in range(40):
        words.append(f"{document}-{position}")
    return words


def count_words(documents: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for document in range(documents):
        for token in tokens_of(document):
            key = token[-2:]
            counts[key] = counts.get(key, 0) + 1
    return counts


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    count_words(100_000_000 if dist.get_rank() == 1 else 1_000)
    dist.barrier()


if __name__ == "__main__":
    main()
