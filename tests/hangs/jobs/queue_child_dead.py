"""Rank 0 waits for results of a child process that is dead."""

import multiprocessing

import torch.distributed as dist
from mark import ready


def augment(results: multiprocessing.Queue) -> None:
    ready("helper")
    while True:
        pass


def next_sample(results: multiprocessing.Queue) -> int:
    return results.get()


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        context.Process(target=augment, args=(results,), daemon=True).start()
        ready()
        next_sample(results)
    ready()
    dist.barrier()


if __name__ == "__main__":
    main()
