"""Ranks 0 and 1 use two groups in opposite order; rank 2 waits for both at the end of the step."""

import torch
import torch.distributed as dist
from mark import ready


def reduce_tensor_parallel(group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(8), group=group)


def reduce_data_parallel(group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(8), group=group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor_parallel, data_parallel = dist.new_group([0, 1]), dist.new_group([0, 1])
    ready()
    if rank == 0:
        reduce_tensor_parallel(tensor_parallel)
        reduce_data_parallel(data_parallel)
    if rank == 1:
        reduce_data_parallel(data_parallel)
        reduce_tensor_parallel(tensor_parallel)
    dist.barrier()


if __name__ == "__main__":
    main()
