"""Rank 0 writes its samples into the pipe of a log process that has stopped reading."""

import subprocess

import torch.distributed as dist
from mark import ready


def dump_samples(logger: subprocess.Popen) -> None:
    for step in range(100_000):
        logger.stdin.write(f"{step} {'x' * 500}\n".encode())


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 0:
        dump_samples(subprocess.Popen(["sleep", "100000"], stdin=subprocess.PIPE))
    dist.barrier()


if __name__ == "__main__":
    main()
