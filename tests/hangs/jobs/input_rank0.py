"""Rank 0 asks a person before it overwrites the output folder; nobody watches the terminal."""

import torch.distributed as dist
from mark import ready


def confirm_overwrite(folder: str) -> bool:
    return input(f"{folder} exists, overwrite? [y/N] ") == "y"


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 0:
        confirm_overwrite("runs/baseline")
    dist.barrier()


if __name__ == "__main__":
    main()
