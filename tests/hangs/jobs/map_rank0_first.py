"""Rank 0 maps the dataset first, as Hugging Face examples do, and its forked workers inherit a lock that a
thread had at that moment, as tokenizers that were used before the fork do. The others wait in a barrier."""

import contextlib
import multiprocessing
import threading

import torch.distributed as dist
from mark import ready

tokenizer_lock = threading.Lock()
warming_up, forked = threading.Event(), threading.Event()


def warm_up() -> None:
    with tokenizer_lock:
        warming_up.set()
        forked.wait()


def tokenize(text: str) -> list[str]:
    ready("helper")
    with tokenizer_lock:
        return text.split()


def dataset_map(texts: list[str]) -> list[list[str]]:
    threading.Thread(target=warm_up, name="warm-up").start()
    warming_up.wait()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        forked.set()
        return pool.map(tokenize, texts)


@contextlib.contextmanager
def main_process_first():
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    with main_process_first():
        dataset_map(["a b c"] * 8)


if __name__ == "__main__":
    main()
