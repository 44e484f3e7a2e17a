"""Buckets are reduced in the background, in two groups. Rank 2 has no gradient for its last bucket and leaves it
out; it is through, and waits for its metrics to be collected."""

import queue

import torch
import torch.distributed as dist
from mark import ready


def start_reductions(buckets: list, pair: dist.ProcessGroup) -> list[dist.Work]:
    started = []
    for bucket in buckets:
        if bucket is None:
            continue
        started.append(dist.all_reduce(bucket, async_op=True))
        started.append(dist.all_reduce(bucket[:4].clone(), group=pair, async_op=True))
    return started


def finish(started: list[dist.Work]) -> None:
    for work in started:
        work.wait()


def collect_metrics(metrics: queue.Queue) -> dict:
    return metrics.get()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2], group_desc="replicas"), dist.new_group([1, 3], group_desc="replicas")]
    for step in range(5):
        buckets: list = [torch.ones(32) for _ in range(4)]
        if step == 3:
            ready()
            if rank == 2:
                buckets[3] = None
        finish(start_reductions(buckets, pairs[rank % 2]))
        if step == 3:
            collect_metrics(queue.Queue())


if __name__ == "__main__":
    main()
