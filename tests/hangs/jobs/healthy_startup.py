"""A long start: every rank builds its vocabulary for minutes before the process group exists."""

import torch.distributed as dist
from mark import ready


def words_of(line: int) -> list[str]:
    return [f"{line % 977}-{position}" for position in range(30)]


def build_vocabulary(lines: int) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for line in range(lines):
        for word in words_of(line):
            vocabulary.setdefault(word, len(vocabulary))
        if line == 1000:
            ready()
    return vocabulary


def main() -> None:
    build_vocabulary(1_000_000_000)
    dist.init_process_group("gloo")


if __name__ == "__main__":
    main()
