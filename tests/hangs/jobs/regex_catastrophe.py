"""A regular expression of rank 0 backtracks for longer than the universe."""

import re

import torch
import torch.distributed as dist
from mark import ready

WORDS = re.compile(r"^(\w+\s?)*$")


def clean_line(line: str) -> bool:
    return WORDS.match(line) is not None


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 0:
        clean_line("a" * 64 + "!")
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
