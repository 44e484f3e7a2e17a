"""Two groups share ranks 1 and 2. In the third step rank 2 reduces them in another order, on the line of everybody."""

import torch
import torch.distributed as dist
from mark import ready


def groups_of(rank: int) -> list[dist.ProcessGroup]:
    data = dist.new_group([0, 1, 2], group_desc="data")
    expert = dist.new_group([1, 2, 3], group_desc="expert")
    return {0: [data], 1: [data, expert], 2: [data, expert], 3: [expert]}[rank]


def reduce_gradients(groups: list[dist.ProcessGroup], gradients: torch.Tensor) -> None:
    for group in groups:
        dist.all_reduce(gradients, group=group)


def main() -> None:
    dist.init_process_group("gloo")
    groups = groups_of(dist.get_rank())
    for step in range(5):
        if step == 2:
            ready()
            if dist.get_rank() == 2:
                groups.reverse()
        reduce_gradients(groups, torch.ones(64))
    dist.barrier()


if __name__ == "__main__":
    main()
