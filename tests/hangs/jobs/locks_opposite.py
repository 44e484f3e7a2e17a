"""Two threads of rank 1 take two locks in opposite order."""

import threading

import torch
import torch.distributed as dist
from mark import ready

model_lock, metrics_lock = threading.Lock(), threading.Lock()
both_hold_one = threading.Barrier(2)


def flush_metrics() -> None:
    with metrics_lock:
        both_hold_one.wait()
        with model_lock:
            pass


def update_model() -> None:
    with model_lock:
        both_hold_one.wait()
        with metrics_lock:
            pass


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 1:
        threading.Thread(target=flush_metrics, name="metrics", daemon=True).start()
        update_model()
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
